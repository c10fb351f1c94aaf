"""Presets: what a run starts from. They stand with their algorithms in `qdhuac.algorithms.specs`."""

from qdhuac.algorithms.specs import make, preset_names

__all__ = ["make", "preset_names"]
