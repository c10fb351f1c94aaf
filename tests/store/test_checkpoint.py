"""Checkpoints: everything is restored; if one is damaged, the previous one is used."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.errors import UserError
from qdhuac.store import checkpoint, repertoire
from qdhuac.store.arrays import flatten, unflatten

TEXTS = {"config.toml": b"a = 1\n", "metrics.jsonl": b"{}\n", "history.jsonl": b"{}\n"}


def example():
    return {
        "key": jax.random.key(5),
        "rbg": jax.random.key(5, impl="rbg"),
        "raw": jax.random.PRNGKey(5),
        "half": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "nested": [jnp.int32(3), (jnp.array([True, False]), jnp.array([jnp.nan, -jnp.inf, 1e-30]))],
        "empty": jnp.zeros((0, 4)),
    }


def save(root, generation, tree):
    return checkpoint.save(root, checkpoint.name(generation, 0), {"n": generation}, TEXTS, flatten(tree))


def test_round_trip_keeps_every_bit(tmp_path):
    tree = example()
    save(tmp_path, 1, tree)
    found = checkpoint.load(tmp_path)
    back = unflatten(jax.eval_shape(example), found.arrays, "here")
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b)
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert jax.random.normal(back["key"]) == jax.random.normal(tree["key"])
    assert (found.record, found.damaged) == ({"n": 1}, [])
    assert {name: kept.path.read_bytes() for name, kept in found.texts.items()} == TEXTS


def test_mismatch_with_the_template_is_named(tmp_path):
    arrays = flatten({"a": jnp.zeros(3), "b": jnp.zeros(2)})
    with pytest.raises(UserError, match=r"here: array 'a' is float32\[3\], expected float32\[4\]"):
        unflatten({"a": jnp.zeros(4), "b": jnp.zeros(2)}, arrays, "here")
    with pytest.raises(UserError, match="unexpected array 'b'"):
        unflatten({"a": jnp.zeros(3)}, arrays, "here")
    with pytest.raises(UserError, match="lacks array 'c'"):
        unflatten({"a": jnp.zeros(3), "b": jnp.zeros(2), "c": jnp.zeros(1)}, arrays, "here")


def test_only_the_newest_two_are_kept(tmp_path):
    (tmp_path / "tmp-leftover").mkdir()
    for generation in (1, 2, 10, 100):
        save(tmp_path, generation, example())
    assert sorted(p.name for p in tmp_path.iterdir()) == [checkpoint.name(10, 0), checkpoint.name(100, 0)]
    save(tmp_path, 100, example())  # once more at the same instant
    assert checkpoint.load(tmp_path).record == {"n": 100}


@pytest.mark.parametrize(
    "file", ["state.safetensors", "manifest.json", "config.toml", "metrics.jsonl", "history.jsonl"]
)
def test_damage_is_detected_and_the_previous_checkpoint_is_used(tmp_path, file):
    save(tmp_path, 1, example())
    path = save(tmp_path, 2, example()) / file
    good = path.read_bytes()
    chance = random.Random(file)
    for _ in range(25):
        data = bytearray(good)
        match chance.randrange(3):
            case 0:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 1:
                del data[chance.randrange(len(data)) :]
            case 2:
                data += b"x"
        path.write_bytes(data)
        found = checkpoint.load(tmp_path)
        assert found.record == {"n": 1}
        assert checkpoint.name(2, 0) in found.damaged[0]
    path.unlink()
    assert checkpoint.load(tmp_path).record == {"n": 1}


def test_damaged_checkpoints_are_removed_by_the_next_save(tmp_path):
    save(tmp_path, 1, example())
    (save(tmp_path, 3, example()) / "state.safetensors").write_bytes(b"")
    found = checkpoint.load(tmp_path)
    checkpoint.set_aside(tmp_path, found)
    save(tmp_path, 2, example())
    assert sorted(p.name for p in tmp_path.iterdir()) == [checkpoint.name(1, 0), checkpoint.name(2, 0)]


def test_without_an_intact_checkpoint_there_is_an_error(tmp_path):
    with pytest.raises(UserError, match="none was ever written"):
        checkpoint.load(tmp_path / "nowhere")
    (save(tmp_path, 1, example()) / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoint.load(tmp_path)


def test_another_schema_is_refused_by_name(tmp_path, monkeypatch):
    save(tmp_path, 1, example())
    monkeypatch.setattr(checkpoint, "SCHEMA", 99)
    save(tmp_path, 2, example())
    monkeypatch.undo()
    with pytest.raises(UserError, match="schema 99"):
        checkpoint.load(tmp_path)


def test_a_failed_save_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1, example())

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_synced", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2, example())
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.name(1, 0)]


def test_repertoire_round_trip_and_damage(tmp_path, make_runner):
    runner = make_runner()
    runner.run()
    path = runner.folder.path / "repertoire.safetensors"
    arrays, metadata = repertoire.read(path)
    archive = runner.state.algorithm.archive
    occupied = np.isfinite(archive.fitness)
    assert metadata["algorithm"] == "dns"
    assert metadata["generation"] == 6
    np.testing.assert_array_equal(arrays["fitness"], np.asarray(archive.fitness)[occupied])
    np.testing.assert_array_equal(repertoire.genotypes(arrays)["x"], np.asarray(archive.genotypes["x"])[occupied])

    good = path.read_bytes()
    chance = random.Random(0)
    for _ in range(100):
        data = bytearray(good)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            again, _ = repertoire.read(path)
        except UserError:
            continue
        assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in arrays.items()}
