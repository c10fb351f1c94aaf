"""Signs of a learner that has gone astray, read from a generation's line of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEAD = 1e-9  # a mean gradient norm below this moves nothing; healthy ones are above 1e-3
CLIPPED = 0.1  # share of the target distribution that falls off the support; healthy critics have less than 0.01


def symptoms(line: Mapping[str, Any], low: float, high: float) -> dict[str, str]:
    """What is wrong, by name; discounted returns are expected between `low` and `high`, nan if nobody knows."""
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
    """The values lie farther outside of the range to expect than that range is wide."""
    if mean is None or spread is None:
        return False
    return mean + spread > high + (high - low) or mean - spread < low - (high - low)
