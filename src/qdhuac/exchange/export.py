"""`qdhuac export`: policies as safetensors and as ONNX, with a contract and a runner that needs only NumPy."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qdhuac
from qdhuac.config import OWN
from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.learning import run_policy
from qdhuac.store.run import Policy, Run

ONNX, RUNNER, INDEX = "policy.onnx", "run_policy.py", "policies.json"


def check_output(output: Path) -> None:
    """Raise UserError if the folder exists."""
    if os.path.lexists(output):
        raise UserError(f"--output {output}: exists already; name a new folder")


def export(run: Run, policies: Sequence[Policy], output: Path, *, each: bool) -> list[str]:
    """Write policies into a new folder.

    Args:
        run: the run that the policies are from.
        policies: the policies.
        output: the new folder. It appears when everything is written.
        each: write a folder for each policy, and an index of them.

    Returns:
        Warnings.

    Raises:
        UserError: the folder cannot be written, or the robot has changed since training.
    """
    contract = make_contract(run)
    notes = []
    try:
        require("onnx", "onnx")
    except UserError as error:
        notes.append(f"{ONNX} is not written: {error}")
    temporary = output.with_name(f".{output.name[:100]}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        for policy in policies:
            folder = temporary / f"{policy.index:05d}" if each else temporary
            folder.mkdir(exist_ok=True)
            _write(folder, policy, contract, onnx=not notes)
        if each:
            rows = [{"folder": f"{p.index:05d}", **_individual(p)} for p in policies]
            (temporary / INDEX).write_text(_json(rows))
        temporary.rename(output)
    except OSError as error:
        raise UserError(f"--output {output}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return notes


def make_contract(run: Run) -> dict[str, Any]:
    """The part of the contract that all policies of a run share. Raise UserError if the robot has changed."""
    from qdhuac.exchange.contract import interface, unnamed

    sizes, name, backend = run.metadata["policy"], run.config.task.name, run.config.task.backend
    obs_size, action_size = sizes["obs_size"], sizes["action_size"]
    bounds = run.metadata.get("action_bounds")
    described = unnamed(obs_size, action_size, bounds) if name == OWN else interface(run.config)
    for kind, size in (("observations", obs_size), ("actions", action_size)):
        if len(described[kind]) != size:
            raise UserError(
                f"task {name!r} on backend {backend!r} has {len(described[kind])} {kind}, but the policies in "
                f"{run.folder.path} were trained with {size}"
            )
    return {
        "format": run_policy.FORMAT,
        "made_by": f"qdhuac {qdhuac.__version__}",
        "task": name,
        "backend": backend,
        "network": {"hidden": sizes["hidden"], "activation": "relu", "output": "tanh"},
        "normalisation": "none",
        "obs_size": obs_size,
        "action_size": action_size,
        **described,
    }


def to_onnx(policy: Policy, contract: dict[str, Any]) -> bytes:
    """The network as an ONNX model, from `obs` [batch, obs] to `continuous_actions` [batch, actions]."""
    onnx = require("onnx", "onnx")
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in _arrays(policy).items()]
    nodes, value, last = [], "obs", len(policy.layers) - 1
    for i in range(len(policy.layers)):
        nodes.append(onnx.helper.make_node("Gemm", [value, f"Dense_{i}/kernel", f"Dense_{i}/bias"], [f"dense_{i}"]))
        value = "continuous_actions" if i == last else f"hidden_{i}"
        nodes.append(onnx.helper.make_node("Tanh" if i == last else "Relu", [f"dense_{i}"], [value]))

    def tensor(name: str, size: int) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])

    obs, actions = tensor("obs", contract["obs_size"]), tensor("continuous_actions", contract["action_size"])
    graph = onnx.helper.make_graph(nodes, "policy", [obs], [actions], weights)
    # Old versions, which the runtimes of several years can read.
    versions = {"ir_version": 8, "opset_imports": [onnx.helper.make_opsetid("", 17)]}
    model = onnx.helper.make_model(graph, producer_name="qdhuac", **versions)
    onnx.helper.set_model_props(model, {"contract": json.dumps(contract)})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _write(folder: Path, policy: Policy, contract: dict[str, Any], *, onnx: bool) -> None:
    from safetensors.numpy import save

    weights = save(_arrays(policy))
    contract = contract | {"individual": _individual(policy), "sha256": hashlib.sha256(weights).hexdigest()}
    (folder / run_policy.WEIGHTS).write_bytes(weights)
    (folder / run_policy.CONTRACT).write_text(_json(contract))
    shutil.copyfile(run_policy.__file__, folder / RUNNER)
    if onnx:
        (folder / ONNX).write_bytes(to_onnx(policy, contract))


def _arrays(policy: Policy) -> dict[str, np.ndarray]:
    """The arrays of the network by name, such as `Dense_0/kernel`."""
    arrays: dict[str, np.ndarray] = {}
    for i, (kernel, bias) in enumerate(policy.layers):
        arrays |= {f"Dense_{i}/kernel": np.ascontiguousarray(kernel), f"Dense_{i}/bias": np.ascontiguousarray(bias)}
    return arrays


def _individual(policy: Policy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in ("index", "id", "fitness", "descriptor")}


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
