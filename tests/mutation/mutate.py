"""Plant one small bug at a time in the core, and print those that no test detects.

    python tests/mutation/mutate.py                            # 40 bugs, drawn from all files
    python tests/mutation/mutate.py learning archives --bugs 0  # every bug of these rooms: hours

A file is tested by the test file of its name if there is one, otherwise by the tests of its room. `survivors.toml`
holds survivors that were judged, by file, each with the reason why it may live; they are not planted again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

WIDTH = 110  # characters around a bug by which it is known
ROOT = Path(__file__).parents[2]
ROOMS = ("metrics.py", "archives", "emitters", "learning", "algorithms")
MIRRORED = {"learning/target_free.py": "learning/test_learner.py"}
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
PAIRS = ("min max", "argmin argmax", "minimum maximum", "any all", "sum mean", "zeros ones", "zeros_like ones_like")
NAMES = {a: b for pair in map(str.split, PAIRS) for a, b in (pair, pair[::-1])}
TRANSPARENT = ("abs", "clip", "sqrt", "square", "exp", "log", "stop_gradient", "tanh", "relu", "project")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a small bug may put in the place of an expression."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        yield _with(node, op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield _with(node, ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, arguments = node.func.attr, node.args
        if name in NAMES:
            yield _with(node, func=_with(node.func, attr=NAMES[name]))
        elif name == "where" and len(arguments) == 3:
            yield _with(node, args=[arguments[0], arguments[2], arguments[1]])
        elif name in TRANSPARENT and arguments:
            yield arguments[0]


def bugs(source: str) -> Iterator[tuple[str, str]]:
    """Every bug of a file: what it looks like, and the file with it. Errors, checks, types and defaults are spared."""
    tree = ast.parse(source)

    def visit(node: ast.AST, outer: tuple[ast.AST, ...], where: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Raise | ast.Assert) or (
            isinstance(node, ast.keyword) and node.arg in ("axis", "strict")
        ):
            return
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            where = f"{where}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or isinstance(value, ast.arguments):
                continue
            for i, part in enumerate(value if isinstance(value, list) else [value]):
                default = isinstance(node, ast.ClassDef) and not isinstance(part, ast.FunctionDef)
                if not isinstance(part, ast.AST) or default:
                    continue
                for other in changes(part):
                    _put(node, name, i, other)
                    around = [text for x in (*outer, node) if len(text := ast.unparse(x)) <= WIDTH and "\n" not in text]
                    yield f"{where}: {(around or [ast.unparse(other)])[0]}", ast.unparse(tree)
                    _put(node, name, i, part)
                yield from visit(part, (*outer, node), where)

    yield from visit(tree, (), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=ROOMS, help="rooms or files below src/qdhuac")
    parser.add_argument("--bugs", type=int, default=40, help="how many to draw; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    judged = tomllib.loads((Path(__file__).with_name("survivors.toml")).read_text())
    package = ROOT / "src" / "qdhuac"
    files = [
        f for p in options.paths for f in ([package / p] if p.endswith(".py") else sorted((package / p).glob("*.py")))
    ]
    planted = []
    for file in files:
        name = file.relative_to(package).as_posix()
        seen = dict.fromkeys(judged.get(name, {}), True)
        planted += [(name, what, text) for what, text in bugs(file.read_text()) if what not in seen]
    if options.bugs and options.bugs < len(planted):
        planted = random.Random(options.seed).sample(planted, options.bugs)
    planted.sort()

    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(scratch) / part)
        shutil.copy(ROOT / "pyproject.toml", scratch)
        for tests in dict.fromkeys(mirrored(name) for name, _, _ in planted):
            if not passes(scratch, tests):
                sys.stderr.write(f"{tests}: fails without any bug\n")
                return 1
        for name, what, text in planted:
            file = Path(scratch, "src", "qdhuac", name)
            sound = file.read_text()
            file.write_text(text)
            survived = passes(scratch, mirrored(name))
            file.write_text(sound)
            survivors += survived
            sys.stdout.write(f"{'SURVIVED' if survived else 'killed  '} {name} {what}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{survivors} of {len(planted)} bugs survived\n")
    return int(survivors > 0)


def mirrored(name: str) -> str:
    """The tests of a file, a file or a folder below `tests`."""
    path = Path(name)
    own = MIRRORED.get(name, str(path.parent / f"test_{path.stem}.py"))
    return own if (ROOT / "tests" / own).exists() else str(path.parent)


def passes(scratch: str, tests: str) -> bool:
    """Whether tests pass; if they hang, they do not."""
    environment = os.environ | {
        "PYTHONPATH": f"{scratch}/src:{scratch}/tests/helpers",
        "JAX_COMPILATION_CACHE_DIR": f"{scratch}/cache",
    }
    command = [sys.executable, "-m", "pytest", "-n0", "-x", f"{scratch}/tests/{tests}"]
    try:
        return not subprocess.run(command, cwd=scratch, env=environment, capture_output=True, timeout=1200).returncode
    except subprocess.TimeoutExpired:
        return False


def _with(node: ast.AST, **fields: object) -> ast.AST:
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def _put(node: ast.AST, name: str, position: int, value: ast.AST) -> None:
    if isinstance(old := getattr(node, name), list):
        old[position] = value
    else:
        setattr(node, name, value)


if __name__ == "__main__":
    sys.exit(main())
