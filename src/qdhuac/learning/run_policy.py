"""Runs a policy that qdhuac exported. Needs NumPy and nothing else: copy this folder to the robot.

In Python: ``action = Policy()(observation)``. As a program: ``python run_policy.py`` reads one JSON list of
observations per line and answers each with a JSON list of actions.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CONTRACT, WEIGHTS, FORMAT = "contract.json", "policy.safetensors", "qdhuac policy 1"
LOG_STD_RANGE = (-5.0, 2.0)  # of the learner's actor when it explores; exported policies never do
Layers = Sequence[tuple[np.ndarray, np.ndarray]]  # kernel [inputs, outputs] and bias [outputs]


class Policy:
    """A policy and its contract: what each observation and each action is, and how often it acts."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        folder = Path(folder)
        self.contract: dict[str, Any] = json.loads((folder / CONTRACT).read_text())
        weights = (folder / WEIGHTS).read_bytes()
        if not isinstance(self.contract, dict) or self.contract.get("sha256") != hashlib.sha256(weights).hexdigest():
            raise ValueError(f"{CONTRACT}: sha256 is not that of {WEIGHTS}")
        self.layers = read_layers(weights)
        check(self.contract, self.layers)

    def __call__(self, obs: Any) -> np.ndarray:
        """Actions between -1 and 1 for one observation [obs] or for many [..., obs]."""
        return act(self.layers, obs)


def act(layers: Layers, obs: Any) -> np.ndarray:
    """The network: ReLU between layers, tanh at the end. [..., obs] -> [..., actions]"""
    kernel, bias = layers[-1]
    return np.tanh(hidden(layers, obs) @ kernel + bias)


def hidden(layers: Layers, obs: Any) -> np.ndarray:
    """What goes into the last layer. [..., obs] -> [..., width]"""
    x = np.asarray(obs, np.float32)
    if x.ndim < 1 or x.shape[-1] != len(layers[0][0]):
        raise ValueError(f"obs: expected {len(layers[0][0])} numbers, got shape {x.shape}")
    for kernel, bias in layers[:-1]:
        x = np.maximum(x @ kernel + bias, 0.0)
    return x


def layers_of(genotype: Any) -> Layers:
    """The layers of a genotype, whose arrays are `Dense_0/kernel` and so on; a batch of them has batches of arrays."""
    layers = [genotype[f"Dense_{i}"] for i in range(len(genotype))]
    return [(layer["kernel"], layer["bias"]) for layer in layers]


def read_layers(data: bytes) -> Layers:
    """The layers in a safetensors file: the length of a JSON header, the header, then the numbers."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])

    def tensor(name: str) -> np.ndarray:
        entry = header[name]
        low, high = entry["data_offsets"]
        return np.frombuffer(data[start + low : start + high], "<f4").reshape(entry["shape"])

    count = sum(name.endswith("/kernel") for name in header)
    return [(tensor(f"Dense_{i}/kernel"), tensor(f"Dense_{i}/bias")) for i in range(count)]


def check(contract: dict[str, Any], layers: Layers) -> None:
    """Refuse a contract that is not the one of these layers."""
    hidden = [len(bias) for _, bias in layers[:-1]]
    facts = {
        "format": FORMAT,
        "normalisation": "none",
        "obs_size": len(layers[0][0]),
        "action_size": len(layers[-1][1]),
        "network": {"hidden": hidden, "activation": "relu", "output": "tanh"},
    }
    for name, fact in facts.items():
        if contract.get(name) != fact:
            raise ValueError(f"{CONTRACT}: {name} is {contract.get(name)!r}, but {WEIGHTS} needs {fact!r}")
    for name, size in (("observations", "obs_size"), ("actions", "action_size")):
        if not isinstance(contract.get(name), list) or len(contract[name]) != contract[size]:
            raise ValueError(f"{CONTRACT}: {name} must be a list of {contract[size]}")


def main() -> int:
    try:
        policy = Policy()
        for line in sys.stdin:
            if line.strip():
                obs = np.asarray(json.loads(line), np.float32)
                if not np.isfinite(obs).all():
                    raise ValueError(f"obs: expected finite numbers, got {line.strip()}")
                print(json.dumps(policy(obs).tolist()), flush=True)
    except (OSError, TypeError, ValueError) as error:
        print(f"run_policy: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
