"""What is installed: bounds for those who install without the lock, and a lock that has what is pinned."""

import itertools
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
LOCK = (ROOT / "lock.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_bounds_that_the_pin_is_in():
    wanted = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in map(Requirement, itertools.chain(*wanted)):
        assert sorted(spec.operator for spec in requirement.specifier) == ["<", ">="], requirement
        assert requirement.specifier.contains(PINS[requirement.name.lower()]), requirement


def test_the_lock_has_a_hash_and_the_extras_of_every_pin():
    lines = LOCK.splitlines()[1:]
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==\S+( --hash=sha256:[0-9a-f]{64})+  #( \w+)+", line), line
        assert set(line.partition("# ")[2].split()) <= set(PROJECT["optional-dependencies"]), line
    assert dict(line.split()[0].split("==") for line in lines) == PINS


def test_neither_names_a_registry():
    assert "://" not in LOCK + (ROOT / "constraints.txt").read_text()
