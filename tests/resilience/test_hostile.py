"""Hostile files: no code runs, nothing is written outside the run folder, and the error is one line."""

import json
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import corrupt
import numpy as np
import pytest
from hostile import MALFORMED, attack, forge, write_sparse

from qdhuac.algorithms import specs
from qdhuac.errors import UserError
from qdhuac.files import replace_file
from qdhuac.store import checkpoint, repertoire, schema
from qdhuac.store.run_folder import CONFIG, HISTORY, LOCK, METRICS, REPERTOIRE, RunDir, _with_checksum

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "run"
    with mock.patch.multiple(checkpoint, **corrupt.SIZES):
        corrupt.make_run(path)
    return path


@pytest.fixture
def run(intact, tmp_path):
    with mock.patch.multiple(checkpoint, **corrupt.SIZES):
        yield Path(shutil.copytree(intact, tmp_path / "run"))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "import dill",
        "import joblib",
        "import numpy as np\n\nnp.load('x')",
    ],
)
def test_the_linter_forbids_pickle(code):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--stdin-filename",
        "src/qdhuac/new.py",
        "--select",
        "TID251",
        "-",
    ]
    done = subprocess.run(command, input=code, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "no pickle" in done.stdout


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_safetensors(run, kind):
    (run / REPERTOIRE).write_bytes(MALFORMED[kind])
    with pytest.raises(UserError, match=r"repertoire\.safetensors"):
        repertoire.read(run / REPERTOIRE)
    folder = RunDir.open(run)
    assert len(repertoire.find(folder)[0]["fitness"]) == 5  # the newest checkpoint's
    assert "using the archive in checkpoint" in folder.notes[0]

    # The same as the state of a checkpoint, with hashes that fit.
    newest = sorted((run / "checkpoints").iterdir())[-1]
    forge(newest, {"state.safetensors": MALFORMED[kind]})
    found = checkpoint.load(run / "checkpoints")
    assert found.path != newest
    assert newest.name in found.damaged[0]


ROWS = "algorithm/replay/rows"


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {"config.toml": None}},
        {"record": "x"},
        {"large": {ROWS: {"dtype": "<f4", "shape": [8192, 4], "pieces": ["../../secret"] * 16}}},
        {"large": {ROWS: {"dtype": "<f4", "shape": [8192, 4], "pieces": ["/etc/passwd"] * 16}}},
        {"large": {ROWS: {"dtype": "<f4", "shape": [1 << 60], "pieces": []}}},
        {"large": {ROWS: {"dtype": "O", "shape": [8192], "pieces": [None] * 8}}},
        {"large": {ROWS: {"dtype": "<f4", "shape": [-1], "pieces": []}}},
        {"large": {ROWS: 7}},
    ],
)
def test_manifests_with_wrong_contents_are_passed_over(run, tmp_path, changes):
    (tmp_path / "secret").write_bytes(bytes(1 << 13))
    newest = sorted((run / "checkpoints").iterdir())[-1]
    forge(newest, **changes)
    found = checkpoint.load(run / "checkpoints")
    assert found.path != newest


@pytest.mark.parametrize("change", [{"counters": {"generation": 5, "__class__": 1}}, {"counters": 3}, {}])
def test_counters_of_another_kind_are_refused(make_runner, change):
    runner = make_runner()
    runner.run()
    runner.folder.unlock()
    newest = checkpoint.load(runner.folder.checkpoints).path
    forge(newest, record={"pending": None, **change})
    with pytest.raises(UserError, match="other counters"):
        make_runner(again=True)


@pytest.mark.parametrize(
    "name", [CONFIG, METRICS, HISTORY, REPERTOIRE, LOCK, "checkpoints", "report.html", "evaluation.json"]
)
def test_links_out_of_the_run_folder_are_refused(run, tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    target = run / name
    if target.is_dir():
        target.rename(tmp_path / "moved")
    else:
        target.unlink(missing_ok=True)
    target.symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        RunDir.open(run)
    assert outside.read_text() == "precious"


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(run, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (run / f".{CONFIG}.tmp").symlink_to(outside)
    replace_file(run / CONFIG, b"new")
    assert outside.read_text() == "precious"
    assert (run / CONFIG).read_bytes() == b"new"


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 50_000,
        "a = " + "{b=" * 10_000,
        ".".join("a" * 8_000) + " = 1",
        "[" + ".".join("a" * 8_000) + "]",
        'a = "' + "x" * 3_000_000 + '"',
        "a = " + "9" * 90_000,
        "[run]\nseed = 1\n[run]\nseed = 2",
        "\ufeff\x00",
    ],
)
def test_deeply_nested_toml_is_replaced_by_the_checkpoints_copy(run, text):
    import hashlib

    body = text.encode()
    checksum = f"\n# sha256 {hashlib.sha256(body).hexdigest()}\n".encode()
    for data in (body, body + checksum):
        (run / CONFIG).write_bytes(data)
        folder = RunDir.open(run)
        assert folder.read_config() is not None
        assert "using the copy in checkpoint" in folder.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        {"generation": "<script>", "env_steps": 1},
        {"generation": 1},
        {"generation": 1, "env_steps": 1, "x": "<img onerror=alert(1)>"},
        {"generation": 1, "env_steps": 1, "x": {"y": 1}},
        {"generation": 1, "env_steps": 1, "x": 10**400},
    ],
)
def test_metrics_that_are_not_numbers(tmp_path, line):
    with RunDir.create(tmp_path / "run", specs.make("dns", "smoke")) as folder:
        folder.append_metrics(line)
        with pytest.raises(UserError, match="line 1 "):
            folder.read_metrics()


POLICY = {"obs_size": 5, "hidden": [], "action_size": 1}
WIDE, LONG = np.zeros((5, 3), np.float32), np.zeros(6, np.float32)


@pytest.mark.parametrize(
    ("arrays", "metadata", "words"),
    [
        ({"descriptor": WIDE}, {}, "its descriptor is float32[5, 3], expected numbers [5, 2]"),
        ({"fitness": LONG}, {}, "expected numbers [6, 2]"),
        ({"fitness": np.arange(5)}, {}, "its fitness is int64[5], expected numbers [5]"),
        ({"fitness": np.full(5, np.nan, np.float32)}, {}, "its fitness holds a value that is not from -1e+18 to 1e+18"),
        ({"descriptor": np.full((5, 2), 1e30)}, {}, "its descriptor holds a value"),
        ({"provenance/id": np.full(5, -2)}, {}, "its id holds a value that is not from -1 to 2.14748e+09"),
        ({"provenance/parents": np.zeros((5, 1), int)}, {}, "expected whole numbers [5, 2]"),
        ({"provenance/operator": None}, {}, "it has no operator"),
        ({"genotypes/x": LONG}, {}, "its arrays do not fit together"),
        ({"genotypes/x": None}, {}, "its genotypes are not a tree"),
        ({"genotypes/x/y": WIDE}, {}, "its genotypes are not a tree"),
        ({f"genotypes/{i}": WIDE for i in range(1001)}, {}, "it has too many arrays"),
        ({"genotypes/" + "x/" * 30: WIDE}, {}, "their names are too long"),
        ({}, {"descriptor_bounds": [[0], [1]]}, "expected numbers [5, 1]"),
        ({}, {"descriptor_bounds": [[0, 1], [1, 1]]}, "descriptor bounds"),
        ({}, {"descriptor_bounds": [[0, "0"], [1, 1]]}, "descriptor bounds"),
        ({}, {"descriptor_bounds": None}, "descriptor bounds"),
        ({}, {"operators": [{}]}, "its operators are not names"),
        ({}, {"operators": ["x" * 5000]}, "its operators are not names"),
        ({}, {"policy": POLICY}, "not the policies that its metadata describes"),
        ({}, {"policy": [1]}, "not the policies that its metadata describes"),
    ],
)
def test_a_repertoire_that_makes_no_sense_is_refused(run, arrays, metadata, words):
    whole, facts = repertoire.read(run / REPERTOIRE)
    changed = {name: array for name, array in (whole | arrays).items() if array is not None}
    state = {f"algorithm/archive/{name}": array for name, array in changed.items()}
    with mock.patch.object(repertoire, "_occupied", return_value=changed):
        repertoire.write(run / REPERTOIRE, state, facts | metadata)
    with pytest.raises(UserError, match=re.escape(words)):
        repertoire.read(run / REPERTOIRE)


def test_the_metadata_of_a_repertoire_must_be_an_object(run):
    repertoire.write(run / REPERTOIRE, checkpoint.load(run / "checkpoints").arrays, [])
    with pytest.raises(UserError, match="not an object"):
        repertoire.read(run / REPERTOIRE)


def test_a_large_repertoire_with_a_false_hash_is_refused_without_reading_it_into_memory(run):
    """Half a gigabyte that is not on the disk."""
    size = 1 << 29
    entries = {"fitness": ("F32", [1 << 19]), "genotypes/x": ("U8", [1 << 19, 900])}
    entries |= {"descriptor": ("F32", [1 << 19, 2])}
    entries |= {f"provenance/{n}": ("I32", [1 << 19, 2][: 1 + (n == "parents")]) for n in schema.PROVENANCE}
    write_sparse(run / REPERTOIRE, entries, {"metadata": json.dumps(corrupt.METADATA), "sha256": "0" * 64})
    assert (run / REPERTOIRE).stat().st_size > 0.9 * size
    tracemalloc.start()
    with pytest.raises(UserError, match="does not match its hash"):
        repertoire.read(run / REPERTOIRE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 50


def test_run_folders_with_impossible_names_are_refused(tmp_path):
    for name in ("a\0b", "\udcff"):
        for refuse in (lambda p: RunDir.create(p, specs.make("dns", "smoke")), RunDir.open):
            with pytest.raises(UserError, match="not a possible name"):
                refuse(tmp_path / name)


def test_a_configuration_with_another_byte_fails_its_checksum():
    data = _with_checksum(specs.make("dns", "smoke"))
    from qdhuac.store.run_folder import _verified

    assert _verified(data, "here") is not None
    assert _verified(data + b"\n", "here") is None


def test_hostile_folders_are_refused_in_one_line_or_work(tmp_path):
    """A sample of what `hostile.py` does at length."""
    result = attack(range(30), tmp_path, ("load", "export", "study"))
    assert result["wrong"] == []
    assert min(result["refused"], result["works"]) > 5
