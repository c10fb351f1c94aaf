"""Public names of a package, imported when they are first used: `import qdhuac` loads neither NumPy nor JAX."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of a package, whose names are those that it imports under `if TYPE_CHECKING`.

    So type checkers and editors see ordinary imports. A name must not be that of a submodule, which would take its
    place once it is imported.
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    guarded = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.ImportFrom)]
    home = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return get, sorted(home)
