"""Public names of a package, imported when they are first used: `import qdhuac` loads neither NumPy nor JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of a package; `names` maps a module to the names that it provides.

    A name must not be that of a submodule, which would take its place once it is imported.
    """
    home = {name: module for module, provided in names.items() for name in provided.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return get, sorted(home)
