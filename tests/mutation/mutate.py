"""Plant one small bug at a time in the core, and print those that no test detects.

    python tests/mutation/mutate.py                            # 40 bugs, drawn from all files
    python tests/mutation/mutate.py learning archives --bugs 0  # every bug of these rooms

A file is tested by the test file of its name if there is one, otherwise by the tests of its room: first those that
detected a bug of this file before, then the quickest. `survivors.toml` holds survivors that were judged, by file, each
with the reason why it may live; they are not planted again.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import importlib
import itertools
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

WIDTH = 110  # characters around a bug by which it is known
ROOT = Path(__file__).parents[2]
ROOMS = ("metrics.py", "archives", "emitters", "learning", "algorithms")
MIRRORED = {
    "learning/target_free.py": ["learning/test_learner.py"],
    "algorithms/engine.py": ["algorithms/test_evolution.py", "algorithms/test_qdhuac.py"],
    "algorithms/specs.py": ["test_config.py"],
}
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
            shutil.copytree(ROOT / part, Path(scratch) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", scratch)
        prepare(scratch)
        for name, of_file in itertools.groupby(planted, key=lambda bug: bug[0]):
            tests, file = mirrored(name), Path(scratch, "src", "qdhuac", name)
            failed, seconds = tried(scratch, tests, {})
            if failed:
                sys.stderr.write(f"{failed}: fails without any bug\n")
                return 1
            order = {test: (0, s) for test, s in seconds.items()}
            sound = file.read_text()
            for _, what, text in of_file:
                file.write_text(text)
                failed, _ = tried(scratch, tests, order, patience=60 + 5 * sum(seconds.values()))
                if failed in order:
                    order[failed] = (order[failed][0] - 1, order[failed][1])
                survivors += not failed
                sys.stdout.write(f"{'killed  ' if failed else 'SURVIVED'} {name} {what}\n")
                sys.stdout.flush()
            file.write_text(sound)
    sys.stdout.write(f"{survivors} of {len(planted)} bugs survived\n")
    return int(survivors > 0)


def mirrored(name: str) -> list[str]:
    """The tests of a file: files or folders below `tests`."""
    path = Path(name)
    own = str(path.parent / f"test_{path.stem}.py")
    return MIRRORED.get(name) or [own if (ROOT / "tests" / own).exists() else str(path.parent)]


def prepare(scratch: str) -> None:
    """Import what all tests need, but nothing of the package, and do not start JAX: then the process can fork."""
    os.environ["QDHUAC_TESTS"] = f"{scratch}/cache"
    os.environ["PYTHONPATH"] = f"{scratch}/src:{scratch}/tests/helpers"
    sys.path[:0] = [f"{scratch}/src", f"{scratch}/tests/helpers"]
    sys.dont_write_bytecode = True  # two bugs in a second may have the same size
    for module in ("quick", "jax.numpy", "optax", "scipy.stats"):  # not Hypothesis, a plugin of pytest
        importlib.import_module(module)


class Order:
    """A plugin of pytest: the tests of a file in a given order, how long each takes, and the first that fails."""

    def __init__(self, order: dict[str, tuple[int, float]]) -> None:
        self.order = order
        self.failed = ""
        self.seconds: dict[str, float] = collections.defaultdict(float)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        best = {}
        for item in items:
            best[item.path] = min(best.get(item.path, (1, 0.0)), self.order.get(item.nodeid, (0, 0.0)))
        items.sort(key=lambda item: (best[item.path], str(item.path), self.order.get(item.nodeid, (0, 0.0))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid


def tried(
    scratch: str, tests: list[str], order: dict[str, tuple[int, float]], patience: float = 1200.0
) -> tuple[str, dict[str, float]]:
    """The first test that fails, "" if all pass, and the seconds of each; in a child that has JAX already."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        plugin = Order(order)
        try:
            os.setsid()
            os.chdir(scratch)
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            code = pytest.main(["-n0", "-x", *(f"tests/{path}" for path in tests)], plugins=[plugin])
            plugin.failed = plugin.failed or (f"{tests}: {code!r}" if code else "")
        except BaseException:
            plugin.failed = traceback.format_exc()
        finally:
            os.write(theirs, json.dumps([plugin.failed, plugin.seconds]).encode())
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        found = select.select([answer], [], [], patience)[0] and answer.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    failed, seconds = json.loads(found) if found else ["no end", {}]
    return failed, seconds


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
