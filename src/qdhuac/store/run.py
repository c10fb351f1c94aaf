"""The results of a run, for use in Python: `qdhuac.load(RUN_DIR)`."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qdhuac.config import Config
from qdhuac.environment import require
from qdhuac.errors import UserError, check_path
from qdhuac.learning import run_policy
from qdhuac.store import repertoire
from qdhuac.store.run_folder import RunDir

if TYPE_CHECKING:
    from qdhuac.types import Individuals


@dataclasses.dataclass(frozen=True)
class Policy:
    """One individual of an archive; call it with an observation to get its action."""

    index: int  # its row in the archive
    id: int
    fitness: float
    descriptor: tuple[float, ...]
    layers: run_policy.Layers

    def __call__(self, obs: Any) -> np.ndarray:
        """Actions [..., action_size] between -1 and 1 for observations [..., obs_size].

        Raises:
            ValueError: the observations have another size.
        """
        return run_policy.act(self.layers, obs)


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of a run, as `qdhuac.load` reads them.

    `len(run)` is the number of policies N. `archive` holds the arrays of `repertoire.safetensors` by name, `config` the
    configuration, and `metadata` the facts about task and policy that are stored with the archive.
    """

    folder: RunDir
    config: Config
    archive: dict[str, np.ndarray]
    metadata: dict[str, Any]

    def __len__(self) -> int:
        return len(self.archive["fitness"])

    @property
    def fitness(self) -> np.ndarray:
        """The return of one episode of each policy [N]."""
        return self.archive["fitness"]

    @property
    def descriptor(self) -> np.ndarray:
        """The descriptor of each policy [N, D]."""
        return self.archive["descriptor"]

    @property
    def best(self) -> Policy:
        """The fittest policy."""
        self.require_individuals()
        return self.policy(int(self.fitness.argmax()))

    @property
    def policies(self) -> list[Policy]:
        """All policies in the order of the archive."""
        return [self.policy(i) for i in range(len(self))]

    @property
    def individuals(self) -> Individuals:
        """The archive as JAX arrays, which `qdhuac.exchange.frames` and `qdhuac.exchange.qdax` take."""
        return repertoire.individuals(self.archive)

    @property
    def metrics(self) -> Any:
        """The metrics as a pandas DataFrame with one row per generation; needs the extra `pandas`."""
        return require("pandas", "pandas").DataFrame(self.folder.read_metrics())

    def nearest(self, descriptor: Sequence[float]) -> Policy:
        """Return the policy with the nearest descriptor. Distances are relative to the width of each bound.

        Args:
            descriptor: the wanted descriptor [D].

        Raises:
            UserError: it does not have D numbers within their bounds, or the archive is empty.
        """
        self.require_individuals()
        low, high = np.asarray(self.metadata["descriptor_bounds"], float)
        wanted = np.atleast_1d(np.asarray(descriptor, float))
        if wanted.shape != low.shape or not np.all((low <= wanted) & (wanted <= high)):
            bounds = ", ".join(f"{a:g} to {b:g}" for a, b in zip(low, high, strict=True))
            count = f"{len(low)} number{'s' * (len(low) > 1)}"
            raise UserError(f"descriptor {wanted.tolist()}: expected {count} within {bounds}")
        distance = np.square((self.descriptor - wanted) / (high - low)).sum(-1)
        return self.policy(int(distance.argmin()))

    def by_id(self, number: int) -> Policy:
        """Return the policy of an individual by its id, as the explorer and the history show it.

        Raises:
            UserError: the archive does not hold this individual.
        """
        (rows,) = np.nonzero(self.archive["provenance/id"] == number)
        if not len(rows):
            raise UserError(f"individual {number} is not in the archive")
        return self.policy(int(rows[0]))

    def policy(self, index: int) -> Policy:
        """Return the policy in a row of the archive, from 0 to N - 1.

        Raises:
            UserError: the row does not exist, or the genotypes are not policies.
        """
        self.require_individuals()
        if not 0 <= index < len(self):
            raise UserError(f"there is no policy {index}; the archive has policies 0 to {len(self) - 1}")
        if self.metadata.get("policy") is None:
            raise UserError(f"{self.folder.path}: its genotypes are not policies")
        tree = repertoire.genotypes(self.archive)
        layers = [(kernel[index], bias[index]) for kernel, bias in run_policy.layers_of(tree)]
        descriptor = tuple(float(x) for x in self.descriptor[index])
        number = int(self.archive["provenance/id"][index])
        return Policy(index, number, float(self.fitness[index]), descriptor, layers)

    def require_individuals(self) -> None:
        """Raise UserError if the archive is empty."""
        if not len(self):
            raise UserError(f"{self.folder.path}: the archive is empty")


def load(run_dir: str | os.PathLike[str]) -> Run:
    """Read the archive, the policies and the metrics of a run. No file is changed, and no code is run.

    Args:
        run_dir: the folder of a run, also of one that is still training.

    Returns:
        The run. A checkpoint stands in for damaged files, with a warning.

    Raises:
        UserError: this is not a run folder, or it has saved nothing yet.
    """
    run = load_run(run_dir)
    for text in run.folder.notes:
        warnings.warn(text, stacklevel=2)
    return run


def load_run(run_dir: str | os.PathLike[str]) -> Run:
    """Read a run as `load` does, but leave the warnings in `folder.notes`."""
    folder = RunDir.open(check_path("run_dir", run_dir))
    config = folder.read_config()
    return Run(folder, config, *repertoire.find(folder))
