"""Figures of merit, measured alike for every algorithm."""

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
    """The best fitness ever seen in each cell of one fixed tessellation: it measures and never selects.

    Archives of different kinds and sizes cannot be compared slot by slot, so every algorithm is measured on the same
    cells. They depend on the bounds of the descriptor alone. The state is the fitness per cell [cells], -inf if empty.
    """

    grid: GridArchive

    @classmethod
    def over(cls, low: Sequence[float], high: Sequence[float], cells: int = CELLS) -> PassiveGrid:
        """The grid over the bounds of a task's descriptor."""
        return cls(GridArchive.cvt(cells, low, high, seed=0))

    def init(self) -> Array:
        """An empty grid."""
        return jnp.full(self.grid.capacity, -jnp.inf)

    def add(self, state: Array, fitness: Array, descriptor: Array) -> Array:
        """The grid after individuals with these fitnesses [B] and descriptors [B, D]; non-finite ones are ignored."""
        counted = jnp.where(admissible(fitness, descriptor), fitness, -jnp.inf)
        return state.at[self.grid.cells(descriptor)].max(counted)


def scores(fitness: Array, offset_total: float) -> dict[str, Array]:
    """QD score, coverage (0 to 1) and maximum fitness of slots [N] of which the empty ones hold -inf.

    `offset_total` is the reward offset times the episode length: what is added to the fitness of each occupied slot,
    so that one more slot never lowers the QD score. The maximum of nothing is nan.
    """
    occupied = jnp.isfinite(fitness)
    return {
        "qd_score": jnp.sum(jnp.where(occupied, fitness + offset_total, 0.0)),
        "coverage": jnp.mean(occupied, dtype=jnp.float32),
        "max_fitness": jnp.where(jnp.any(occupied), jnp.max(jnp.where(occupied, fitness, -jnp.inf)), jnp.nan),
    }


def archive_scores(fitness: Array, offset_total: float) -> dict[str, Array]:
    """The same of an algorithm's own archive, under names of their own, with its size and mean fitness."""
    occupied = jnp.isfinite(fitness)
    size = jnp.sum(occupied)
    mean = jnp.sum(jnp.where(occupied, fitness, 0.0)) / jnp.where(size > 0, size, jnp.nan)
    own = {f"archive_{name}": value for name, value in scores(fitness, offset_total).items()}
    return own | {"archive_size": size, "archive_mean_fitness": mean}


def auc_increment(previous_qd: float, qd: float, steps: int) -> float:
    """Area under the QD score over `steps` environment steps, by the trapezium rule.

    In Python floats on the host: a sum over millions of steps would lose its small terms in 32 bits.
    """
    return 0.5 * (float(previous_qd) + float(qd)) * steps


# Health: signs of a learner that diverges, read from a generation's line of metrics.

DEAD = 1e-9  # a mean gradient norm below this moves nothing; healthy ones are above 1e-3
CLIPPED = 0.1  # share of the target distribution that falls off the support; healthy critics have less than 0.01


def symptoms(line: Mapping[str, Any], low: float, high: float) -> dict[str, str]:
    """Symptoms of divergence by name, each with its message.

    Args:
        line: a generation's metrics.
        low, high: discounted returns to expect; nan if unknown.
    """
    found = {}
    if _exploded(line.get("q_mean"), line.get("q_spread"), low, high):
        found["values"] = (
            f"the critic's values (mean {line['q_mean']:.3g}, spread {line['q_spread']:.3g}) are far from every return "
            f"that the task can give ({low:g} to {high:g})"
        )
    clipped = max((line.get("clipped_above") or 0.0, "above"), (line.get("clipped_below") or 0.0, "below"))
    if clipped[0] > CLIPPED:
        found["values"] = (
            f"{100 * clipped[0]:.0f} % of the critic's target lies {clipped[1]} its support; see critic.v_min and "
            "critic.v_max"
        )
    for name in ("critic", "actor", "diversity_critic", "diversity_actor"):
        norm = line.get(f"{name}_gradient_norm")
        if norm is not None and norm < DEAD:
            found["gradients"] = f"the gradient of the {name.replace('_', ' ')} is dead (norm {norm:.1g})"
    return found


def _exploded(mean: float | None, spread: float | None, low: float, high: float) -> bool:
    """Values lie outside of the expected range by more than its width."""
    if mean is None or spread is None:
        return False
    return mean + spread > high + (high - low) or mean - spread < low - (high - low)
