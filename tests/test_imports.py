"""Packages import downwards only."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "qdhuac"
# From the top to the bottom; packages on one line do not import each other.
FLOORS = (
    ("cli",),
    ("api",),
    ("bench", "view", "exchange", "adaptation"),
    ("report",),
    ("studies",),
    ("training",),
    ("metrics", "store"),
    ("algorithms",),
    ("emitters",),
    ("tasks",),
    ("learning", "archives"),
    ("sharding",),
    ("config", "types", "text"),
    ("environment", "files", "keys"),
    ("errors", "exports"),
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
OF_ALL = {"__init__"}  # what `import qdhuac` offers


def imported(path):
    """The subpackages that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"qdhuac.{alias.name}" for alias in node.names] if node.module == "qdhuac" else [node.module]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "qdhuac" and rest:
                yield rest.partition(".")[0]


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_place_in_the_order():
    rooms = {room(path) for path in PACKAGE.rglob("*.py")} - OF_ALL
    assert rooms == FLOOR.keys()


def test_imports_go_downwards():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for other in sorted(set(imported(path)))
        if room(path) not in OF_ALL and other != room(path) and other in FLOOR and FLOOR[other] <= FLOOR[room(path)]
    ]
    assert wrong == []
