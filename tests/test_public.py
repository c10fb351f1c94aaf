"""The public API: exports of `qdhuac` and its packages, which are lazy and all that the examples need."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ["qdhuac", *(f"qdhuac.{room}" for room in ("algorithms", "archives", "emitters", "learning", "tasks"))]


@pytest.mark.parametrize("name", ROOMS)
def test_every_public_name_exists_and_has_a_docstring(name):
    room = importlib.import_module(name)
    for one in room.__all__:
        value = getattr(room, one)
        assert not inspect.ismodule(value), one
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, one
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        room.nonsense  # noqa: B018


def test_importing_the_public_packages_loads_nothing_heavy():
    code = (
        f"import sys\nfor name in {ROOMS}: __import__(name)\n"
        "heavy = {'jax', 'numpy', 'brax', 'mujoco', 'matplotlib', 'rich', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_import_what_is_public_and_nothing_else(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("qdhuac"):
            assert node.module in ROOMS
            assert {alias.name for alias in node.names} <= set(importlib.import_module(node.module).__all__)
        if isinstance(node, ast.Import):
            assert all(not alias.name.startswith("qdhuac.") for alias in node.names)


def test_the_package_is_marked_as_typed():
    assert (ROOT / "src" / "qdhuac" / "py.typed").exists()
