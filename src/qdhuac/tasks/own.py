"""What is checked of an environment of your own, whichever library it is from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.tasks.rollout import AFTER_TERMINATION

Bounds = tuple[tuple[float, ...], tuple[float, ...]]


def check_options(
    descriptor_bounds: tuple[Sequence[float], Sequence[float]], episode_length: int, after_termination: str
) -> Bounds:
    """The bounds as numbers, if these options make sense."""
    check_choice("after_termination", after_termination, AFTER_TERMINATION)
    low, high = (tuple(map(float, bound)) for bound in descriptor_bounds)
    if not low or len(low) != len(high) or not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(f"descriptor_bounds={descriptor_bounds}: expected a low below a high for each dimension")
    if episode_length < 1:
        raise UserError(f"episode_length={episode_length!r}: must be at least 1")
    return low, high


def check_shape(name: str, shape: tuple[int, ...], bounds: Bounds) -> None:
    """Refuse a descriptor with another shape than its bounds; `name` says which one it is."""
    if shape != (len(bounds[0]),):
        raise UserError(f"{name}: expected {len(bounds[0])} numbers, as descriptor_bounds has, got shape {shape}")


def check_contacts(features: int, bounds: Bounds) -> None:
    """Refuse to store features that are not one for each dimension of the descriptor."""
    if features != len(bounds[0]):
        raise UserError(
            f"store_contacts: expected one feature for each of {len(bounds[0])} dimensions, got {features} features"
        )


def check_inside(descriptors: np.ndarray, bounds: Bounds) -> None:
    """Refuse descriptors [B, D] that leave their bounds by more than rounding."""
    low, high = np.asarray(bounds)
    slack = 1e-5 * (high - low)
    # One that is not finite is a failed evaluation, which is rejected and counted, not a mistake in the bounds.
    outside = np.isfinite(descriptors).all(1) & np.any((descriptors < low - slack) | (descriptors > high + slack), 1)
    if outside.any():
        i = int(outside.argmax())
        found = descriptors[i].tolist()
        raise UserError(f"descriptor of individual {i}: {found} is outside of its bounds {bounds[0]} to {bounds[1]}")
