"""The history: it rebuilds every archive of a run, also after a stop or damage."""

import json

import numpy as np
import pytest
from test_loop import StopAt
from toys import toy_algorithm

from qdhuac.archives.grid import GridArchive
from qdhuac.errors import UserError
from qdhuac.store import repertoire
from qdhuac.store.history import NEVER, rebuild
from qdhuac.store.run_folder import HISTORY, RunDir
from qdhuac.training.display import Progress
from qdhuac.training.signals import Stop


def assert_equal_to_the_archive(history, generation, arrays):
    now = history.at(generation)
    for name in ("id", "parents", "operator"):
        np.testing.assert_array_equal(getattr(history, name)[now], arrays[f"provenance/{name}"])
    for name in ("fitness", "descriptor"):
        assert getattr(history, name)[now].tobytes() == arrays[name].tobytes()  # to the last bit


@pytest.mark.parametrize("kind", ["dns", "grid"])
def test_every_generation_can_be_rebuilt(make_runner, kind):
    kept = {}

    class Keep(Progress):
        def generation(self, line):
            runner.save()
            kept[line["generation"]] = repertoire.find(runner.folder)[0]

    algorithm = toy_algorithm()
    if kind == "grid":
        object.__setattr__(algorithm, "archive", GridArchive.regular(16, (0.0, 0.0), (1.0, 1.0)))
    runner = make_runner(algorithm=algorithm, progress=Keep(), run__generations=12)
    runner.run()
    history = rebuild(runner.folder.read_history(), 2)
    assert len(kept) == 12
    assert (history.gone < 100).any()  # somebody was evicted, or this would be no test
    for generation, arrays in kept.items():
        assert_equal_to_the_archive(history, generation, arrays)


def test_stopped_in_mid_learning_and_resumed_writes_the_same_history(make_runner):
    whole = make_runner("whole", learning=True)
    whole.run()
    stop = Stop()
    part = make_runner("part", learning=True, stop=stop, progress=StopAt(stop, "learning", 3, 14))
    part.run()
    part.folder.unlock()
    # What a checkpoint in mid-learning holds is already the archive after that generation.
    assert_equal_to_the_archive(rebuild(part.folder.read_history(), 2), 3, repertoire.find(part.folder)[0])
    with (part.folder.path / HISTORY).open("ab") as file:
        file.write(b"what was written after the last checkpoint")
    rest = make_runner("part", learning=True, again=True)
    rest.run()
    assert (rest.folder.path / HISTORY).read_bytes() == (whole.folder.path / HISTORY).read_bytes()


def test_damage_is_detected_and_the_checkpoints_copy_is_used(make_runner):
    runner = make_runner()
    runner.run()
    path = runner.folder.path / HISTORY
    whole, rows = path.read_bytes(), runner.folder.read_history()
    damages = [whole[:200] + b"7" + whole[201:], whole[: len(whole) // 2], whole + whole, b"[]\n", b"", None]
    for damage in damages:
        path.unlink() if damage is None else path.write_bytes(damage)
        folder = RunDir.open(runner.folder.path)
        assert folder.read_history() == rows
        assert "history.jsonl" in folder.notes[0], damage
    path.write_bytes(whole + b'{"generation":7,"slo')  # a line that is being written
    assert RunDir.open(runner.folder.path).read_history() == rows


@pytest.mark.parametrize(
    "line",
    [
        '{"generation": 2}',
        '{"generation": 1, "slot": [1], "id": [1], "parents": [[1]], "operator": [1], "fitness": [1], '
        '"descriptor": []}',
        '{"generation": 1, "slot": ["<b>"], "id": [1], "parents": [[1, 2]], "operator": [1], "fitness": [1.0], '
        '"descriptor": [[1.0]]}',
    ],
)
def test_a_file_that_is_not_a_history_is_refused(make_runner, line):
    runner = make_runner()
    row = json.loads(line)
    runner.folder.append_history(row.pop("generation"), row)
    with pytest.raises(UserError, match="line 1"):
        runner.folder.read_history()


def test_lineage_and_eviction():
    rows = [
        {"generation": 1, "slot": [0, 1], "id": [0, 1], "parents": [[-1, -1]] * 2, "operator": [0, 0]},
        {"generation": 2, "slot": [0], "id": [2], "parents": [[1, 0]], "operator": [1]},
        {"generation": 3, "slot": [0, 2], "id": [4, 5], "parents": [[2, -1], [99, 1]], "operator": [1, 1]},
    ]
    for row in rows:
        row |= {"fitness": [0.5] * len(row["id"]), "descriptor": [[0.1]] * len(row["id"])}
    history = rebuild(rows, 1)
    assert [history.id[i] for i in history.lineage(4)] == [4, 2, 1]
    assert [history.id[i] for i in history.lineage(5)] == [5]  # its parent is not in the history
    assert history.gone[:4].tolist() == [2, NEVER, 3, NEVER]
    assert history.id[history.at(2)].tolist() == [2, 1]
