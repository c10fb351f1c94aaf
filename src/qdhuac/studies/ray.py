"""Runs as tasks of a Ray cluster. Ray chooses the nodes, and retries on another node if one is lost."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdhuac.environment import require, versions
from qdhuac.errors import UserError
from qdhuac.studies import worker
from qdhuac.studies.catalogue import Run
from qdhuac.studies.local import Result

LOST = 100  # most retries of a run that loses its node
STORE = 80 << 20  # bytes of the object store of a local Ray; orders and results are small
TIMEOUT = 2.0  # seconds to connect to the cluster
PATIENCE = 120.0  # seconds for a node to answer with its versions


class Ray:
    """Starts runs on the Ray cluster at RAY_ADDRESS, or on a new one on this machine."""

    queues, poll = True, 0.5

    def __init__(self) -> None:
        self.ray = require("ray", "ray")
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a new Ray sends no usage reports
            options |= {"include_dashboard": False, "object_store_memory": STORE}
        elif address != "auto":
            _check_address(address)
        try:
            self.ray.init(**options)
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise UserError(f"RAY_ADDRESS={address}: {error}") from None

    def prepare(self, root: Path, runs: Sequence[Run], jobs: int) -> None:
        """Check the versions of all nodes. A run asks for one core, and one accelerator if the cluster has any."""
        self._check_versions()
        self.jobs, self._root = jobs, root
        gpus = 1 if self.ray.cluster_resources().get("GPU") else 0
        again = {"max_retries": LOST, "retry_exceptions": [worker.Stopped]}
        self._work = self.ray.remote(num_cpus=1, num_gpus=gpus, **again)(worker.work)

    def _check_versions(self) -> None:
        """Raise UserError if a node does not answer or has other versions of qdhuac or of its packages."""
        check = self.ray.remote(num_cpus=0)(worker.check_versions)
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [strategy(node["NodeID"], soft=False) for node in self.ray.nodes() if node["Alive"]]
        try:
            asked = [check.options(scheduling_strategy=node).remote(versions()) for node in nodes]
            self.ray.get(asked, timeout=PATIENCE)
        except self.ray.exceptions.RayError as error:
            raise UserError(f"--executor ray: a node cannot make the study ({_last_line(error)})") from None

    def begin(self, run: Run, state: str) -> Any:
        return self._work.remote(worker.order(self._root, run)), worker.stop_file(self._root, run)

    def result(self, job: Any) -> Result | None:
        task, _ = job
        if not self.ray.wait([task], timeout=0)[0]:
            return None
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return Result(None, last=_last_line(error))

    def stop(self, job: Any, number: int) -> None:
        """Let the run save. The second time, kill its worker, which ends the run."""
        task, stop_file = job
        again = stop_file.exists()
        stop_file.touch()
        self.ray.cancel(task, force=again)

    def close(self) -> None:
        self.ray.shutdown()


def _check_address(address: str) -> None:
    """Raise UserError if no Ray cluster answers at an address. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise UserError(f"RAY_ADDRESS={address}: expected host:port of the cluster's head, or auto")
    try:
        socket.create_connection((host, int(port)), TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"RAY_ADDRESS={address}: no Ray cluster is there ({error})") from None


def _last_line(error: Exception) -> str:
    error = getattr(error, "cause", None) or error  # the exception of the task itself
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
