"""Packages that only some parts need."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str) -> Any:
    """An optional package, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        from qdhuac.errors import UserError

        raise UserError(f"{module}: not installed; make setup-{extra} or pip install '.[{extra}]' gets it") from None
