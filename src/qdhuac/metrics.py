"""Metrics that are measured in the same way for every algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from qdhuac.archives.common import admissible
from qdhuac.archives.grid import GridArchive
from qdhuac.types import Array

CELLS = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class PassiveGrid:
    """The best fitness that was ever found in each cell of a fixed grid. It measures a run and selects nothing.

    All algorithms are measured on the same cells, which depend only on the bounds of the descriptor, because archives
    of different kinds and sizes cannot be compared directly. The state is the fitness per cell [cells], -inf if empty.
    """

    grid: GridArchive

    @classmethod
    def over(cls, low: Sequence[float], high: Sequence[float], cells: int = CELLS) -> PassiveGrid:
        """Return the grid between the bounds of a descriptor."""
        return cls(GridArchive.cvt(cells, low, high, seed=0))

    def init(self) -> Array:
        """Return an empty grid."""
        return jnp.full(self.grid.capacity, -jnp.inf)

    def add(self, state: Array, fitness: Array, descriptor: Array) -> Array:
        """Add individuals by their fitness [B] and descriptor [B, D]. Non-finite ones are ignored."""
        counted = jnp.where(admissible(fitness, descriptor), fitness, -jnp.inf)
        return state.at[self.grid.cells(descriptor)].max(counted)


def scores(fitness: Array, offset_total: float) -> dict[str, Array]:
    """Return QD score, coverage (0 to 1) and maximum fitness (nan if all slots are empty).

    Args:
        fitness: of each slot [N], -inf if empty.
        offset_total: reward offset times episode length. It is added to the fitness of each occupied slot, so that
            another individual never lowers the QD score.
    """
    occupied = jnp.isfinite(fitness)
    return {
        "qd_score": jnp.sum(jnp.where(occupied, fitness + offset_total, 0.0)),
        "coverage": jnp.mean(occupied, dtype=jnp.float32),
        "max_fitness": jnp.where(jnp.any(occupied), jnp.max(jnp.where(occupied, fitness, -jnp.inf)), jnp.nan),
    }


def archive_scores(fitness: Array, offset_total: float) -> dict[str, Array]:
    """Return the scores of an algorithm's own archive as `archive_...`, with its size and mean fitness."""
    occupied = jnp.isfinite(fitness)
    size = jnp.sum(occupied)
    mean = jnp.sum(jnp.where(occupied, fitness, 0.0)) / jnp.where(size > 0, size, jnp.nan)
    own = {f"archive_{name}": value for name, value in scores(fitness, offset_total).items()}
    return own | {"archive_size": size, "archive_mean_fitness": mean}


def auc_increment(previous_qd: float, qd: float, steps: int) -> float:
    """Return the area under the QD score over `steps` environment steps, by the trapezium rule.

    In Python floats, because a sum over millions of steps would lose its small terms in 32 bits.
    """
    return 0.5 * (float(previous_qd) + float(qd)) * steps


# Symptoms of a run that comes to nothing.

DEAD = 1e-9  # mean gradient norm; healthy ones are above 1e-3
CLIPPED = 0.1  # share of the target distribution outside of the support; healthy critics have less than 0.01


def symptoms(line: Mapping[str, Any], low: float, high: float, updates: int = 0) -> dict[str, str]:
    """Return the symptoms of divergence, and of work that is all rejected, by name, each with a message.

    Args:
        line: a generation's metrics.
        low, high: discounted returns to expect; nan if unknown.
        updates: learner updates of the generation.
    """
    found = {}
    if line.get("rejected") and not any(n for name, n in line.items() if name.endswith("/tried")):
        found["rejected"] = f"every evaluation was rejected; not finite was {_most(line, 'rejected_')}"
    skipped = sum(n or 0 for name, n in line.items() if name.startswith("count_skipped_"))
    if 0 < updates <= skipped:
        found["skipped"] = f"every update was skipped; not finite was {_most(line, 'count_skipped_')}"
    mean, spread, width = line.get("q_mean"), line.get("q_spread"), high - low
    if mean is not None and spread is not None and (mean + spread > high + width or mean - spread < low - width):
        values = f"the critic's values (mean {mean:.3g}, spread {spread:.3g})"
        found["values"] = f"{values} are far from every return that the task can give ({low:g} to {high:g})"
    share, where = max((line.get("clipped_above") or 0.0, "above"), (line.get("clipped_below") or 0.0, "below"))
    if share > CLIPPED:
        lies = f"{100 * share:.0f} % of the critic's target lies {where} its support"
        found["values"] = f"{lies}; see critic.v_min and critic.v_max"
    for name in ("critic", "actor", "diversity_critic", "diversity_actor"):
        norm = line.get(f"{name}_gradient_norm")
        if norm is not None and norm < DEAD:
            found["gradients"] = f"the gradient of the {name.replace('_', ' ')} is dead (norm {norm:.1g})"
    return found


def _most(line: Mapping[str, Any], prefix: str) -> str:
    """The metric with this prefix that is highest, without the prefix."""
    counts = {name.removeprefix(prefix): n or 0 for name, n in line.items() if name.startswith(prefix)}
    return f"most often the {max(counts, key=counts.__getitem__)}"
