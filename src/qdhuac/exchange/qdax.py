"""QDax interoperability: archives to and from its repertoires, and our algorithms as emitters in its loop.

Needs the package `qdax`, which no other part of qdhuac does. A policy is ``{"params": {"Dense_0": ...}}`` in QDax, as
flax has it, and ``{"Dense_0": ...}`` here; any other genotype is the same in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire
from qdax.core.emitters.emitter import Emitter

from qdhuac.algorithms.dcrl_me import DCRLME
from qdhuac.archives.common import admissible, empty
from qdhuac.archives.grid import GridArchive
from qdhuac.errors import UserError
from qdhuac.store import repertoire as files
from qdhuac.types import Array, Emission, Evaluation, Genotype, Individuals, Provenance, Transition

FLAX = "params"


def read(path: Path) -> Individuals:
    """The individuals of a run's `repertoire.safetensors`."""
    return files.individuals(files.read(path)[0])


def to_qdax(archive: Individuals, centroids: Array | np.ndarray) -> MapElitesRepertoire:
    """A repertoire with these cells [cells, D]: each individual in the cell of its descriptor, the fittest of each.

    An archive of MAP-Elites on the same cells loses nothing but the provenance, for which QDax has no place.
    """
    size = archive.descriptor.shape[-1]
    if centroids.ndim != 2 or centroids.shape[-1] != size:
        raise UserError(f"centroids: expected [cells, {size}], as the archive's descriptor is, got {centroids.shape}")
    genotypes = _to_flax(archive.genotypes) if _is_policy(archive.genotypes) else archive.genotypes
    fitness = jnp.where(admissible(archive.fitness, archive.descriptor), archive.fitness, -jnp.inf)
    return MapElitesRepertoire.init(genotypes, fitness, archive.descriptor, jnp.asarray(centroids))


def from_qdax(repertoire: MapElitesRepertoire) -> Individuals:
    """A repertoire as individuals, one slot per cell; their provenance is unknown (-1)."""
    cells, fitness = len(repertoire.centroids), repertoire.fitnesses
    if fitness.shape not in ((cells,), (cells, 1)):
        raise UserError(f"repertoire.fitnesses: expected one number for each of {cells} cells, got {fitness.shape}")
    if repertoire.descriptors.shape != repertoire.centroids.shape:
        expected, got = repertoire.centroids.shape, repertoire.descriptors.shape
        raise UserError(f"repertoire.descriptors: expected {expected}, as the centroids, got {got}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(repertoire.genotypes):
        if leaf.shape[:1] != (cells,):
            name = jax.tree_util.keystr(path)
            raise UserError(f"repertoire.genotypes{name}: expected {cells} cells first, got {leaf.shape}")
    genotypes = _from_flax(repertoire.genotypes)
    return Individuals(genotypes, fitness.reshape(-1), repertoire.descriptors, _unknown(cells))


def cells_of(repertoire: MapElitesRepertoire, low: Any, high: Any) -> GridArchive:
    """A MAP-Elites archive on the repertoire's cells, whose descriptors lie between `low` and `high` [D]."""
    centroids = np.asarray(repertoire.centroids)
    lower, upper = np.asarray(low, np.float32), np.asarray(high, np.float32)
    for name, bound in (("low", lower), ("high", upper)):
        if bound.shape != centroids.shape[1:]:
            size = centroids.shape[1]
            raise UserError(f"{name}: expected {size} numbers, one per dimension of the descriptor, got {bound}")
    return GridArchive(lower, upper, centroids)


class QDaxEmitter(Emitter):
    """One of our algorithms as an emitter for QDax's `MAPElites`; parents are the repertoire's.

    `updates` is how often it learns in a generation. An algorithm that learns takes `extra_scores["transitions"]`, a
    `QDTransition` with leaves [B, T, ...], as QDax's scoring functions give it.
    """

    def __init__(self, algorithm: Any, updates: int = 0) -> None:
        if isinstance(algorithm, DCRLME):
            raise UserError(
                "algorithm dcrl_me: cannot run in QDax's loop, which has no place for the descriptor that an offspring "
                "was made for"
            )
        config = getattr(algorithm, "emitter", algorithm)
        if getattr(config, "exploration_rollouts", 0):
            raise UserError(
                f"emitter.exploration_rollouts={config.exploration_rollouts}: must be 0, as QDax's scoring functions "
                "are not told which rollouts explore"
            )
        # Selection is QDax's.
        self.algorithm = dataclasses.replace(algorithm, archive=_Elsewhere())
        self.updates, self._batch_size = updates, config.batch_size

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def use_all_data(self) -> bool:
        """Beside other emitters it learns from their offspring too."""
        return True

    def init(
        self,
        key: Array,
        repertoire: MapElitesRepertoire,
        genotypes: Genotype,
        fitnesses: Array,
        descriptors: Array,
        extra_scores: dict[str, Any],
    ) -> Any:
        """The algorithm's own state, which has learnt from the first population already."""
        state = self.algorithm.init(key)
        _check_genotypes(state.archive.genotypes, _from_flax(genotypes))
        if descriptors.shape[-1] != self.algorithm.descriptor_size:
            raise UserError(
                f"descriptors: the scoring function's have {descriptors.shape[-1]} dimensions, but the algorithm was "
                f"built for {self.algorithm.descriptor_size}"
            )
        return self.state_update(state, repertoire, genotypes, fitnesses, descriptors, extra_scores)

    def emit(self, repertoire: MapElitesRepertoire, emitter_state: Any, key: Array) -> tuple[Genotype, dict[str, Any]]:
        """What the algorithm asks for, with parents from the repertoire."""
        state = emitter_state._replace(key=key, archive=from_qdax(repertoire))
        children = self.algorithm.ask(state).genotypes
        return _to_flax(children) if _is_flax(repertoire.genotypes) else children, {}

    def state_update(
        self,
        emitter_state: Any,
        repertoire: MapElitesRepertoire,
        genotypes: Genotype,
        fitnesses: Array,
        descriptors: Array,
        extra_scores: dict[str, Any],
    ) -> Any:
        """The transitions are stored and learnt from."""
        size = len(descriptors)
        replay = getattr(self.algorithm, "replay", None)
        transitions, valid = None, None
        if replay is not None:
            transitions, valid = _transitions(extra_scores, size, replay)
        steps = jnp.ones(size, jnp.int32) if valid is None else jnp.sum(valid, axis=1, dtype=jnp.int32)
        evaluation = Evaluation(fitnesses.reshape(-1), descriptors, steps, transitions, valid)
        emission = Emission(_from_flax(genotypes), _unknown(size), jnp.full(size, jnp.nan))
        state, _ = self.algorithm.tell(emitter_state, emission, evaluation)
        return self.algorithm.learn(state, jnp.int32(self.updates))[0]


@dataclasses.dataclass(frozen=True)
class _Elsewhere:
    """The archive of an algorithm for which somebody else selects: one slot, always empty."""

    capacity: int = 1

    def init(self, example: Individuals) -> Individuals:
        return empty(example, self.capacity)

    def add(self, state: Individuals, offspring: Individuals) -> tuple[Individuals, Array]:
        return state, jnp.zeros(len(offspring.fitness), bool)


def _transitions(extra_scores: dict[str, Any], size: int, replay: Any) -> tuple[Transition, Array]:
    """QDax's transitions as ours, and which of them may be stored [B, T].

    QDax has the next episode's first observation as the successor of a truncated step: such a step is left out.
    """
    t = extra_scores.get("transitions")
    if t is None:
        raise UserError("extra_scores: has no 'transitions', which an algorithm with a learner needs")
    wanted = {"obs": replay.obs_size, "actions": replay.action_size, "next_obs": replay.obs_size}
    if replay.contacts:
        wanted["next_state_desc"] = replay.contacts
    for name, width in wanted.items():
        got = getattr(t, name, jnp.zeros(())).shape
        if len(got) != 3 or (got[0], got[2]) != (size, width):
            raise UserError(f"transitions.{name}: expected [{size}, steps, {width}], got {list(got)}")
    contacts = t.next_state_desc if replay.contacts else None
    terminal = t.dones * (1.0 - t.truncations)
    return Transition(t.obs, t.actions, t.rewards, terminal, t.next_obs, contacts), t.truncations < 0.5


def _check_genotypes(ours: Genotype, theirs: Genotype) -> None:
    """Refuse genotypes that are not shaped like the algorithm's; leaves [anything, ...]."""

    def shapes(tree: Genotype) -> dict[str, tuple[int, ...]]:
        return {jax.tree_util.keystr(p): x.shape[1:] for p, x in jax.tree_util.tree_leaves_with_path(tree)}

    a, b = shapes(ours), shapes(theirs)
    for name in sorted(a | b):
        if a.get(name) != b.get(name):
            raise UserError(f"genotypes{name}: expected {a.get(name, 'nothing')}, got {b.get(name, 'nothing')}")


def _unknown(size: int) -> Provenance:
    return Provenance(*(jnp.full((size, *more), -1, jnp.int32) for more in ((), (2,), (), ())))


def _is_policy(genotypes: Genotype) -> bool:
    return isinstance(genotypes, Mapping) and "Dense_0" in genotypes


def _is_flax(genotypes: Genotype) -> bool:
    return isinstance(genotypes, Mapping) and set(genotypes) == {FLAX}


def _to_flax(genotypes: Genotype) -> Genotype:
    return {FLAX: genotypes}


def _from_flax(genotypes: Genotype) -> Genotype:
    return genotypes[FLAX] if _is_flax(genotypes) else genotypes
