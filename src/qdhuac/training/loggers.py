"""Metrics for other tools, beside `metrics.jsonl`. The packages are extras, imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from qdhuac import config as configuration
from qdhuac.config import Config, check_choice
from qdhuac.environment import require
from qdhuac.errors import UserError


class Logger(Protocol):
    """What the runner calls once per generation."""

    def generation(self, line: Mapping[str, Any]) -> None:
        """A generation has ended with this line of metrics."""

    def close(self) -> None:
        """The end of this process's part of the run."""


class TensorBoard:
    """Scalars over environment steps, in the folder `tensorboard` of the run."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._writer = require("tensorboardX", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def generation(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if value is not None:
                self._writer.add_scalar(name, value, line["env_steps"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run in the project `qdhuac`; WANDB_MODE=offline keeps it in the folder `wandb` of the run."""

    def __init__(self, folder: Path, config: Config) -> None:
        wandb = require("wandb", "wandb")
        try:
            self._run = wandb.init(
                project="qdhuac",
                name=folder.name,
                dir=str(folder),
                config=configuration.to_dict(config),
                reinit="create_new",  # several seeds are several runs at a time
            )
        except Exception as error:  # whatever it is, the run has not begun
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--log wandb: {why}; try wandb login, or WANDB_MODE=offline") from None

    def generation(self, line: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in line.items() if value is not None}, step=line["generation"])

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def check(name: str | None) -> None:
    """Refuse a logger that there is not, or whose package is missing, before anything is made."""
    if name is not None:
        check_choice("--log", name, LOGGERS)
        require(_MODULES[name], name)


def make(name: str | None, folder: Path, config: Config) -> Logger | None:
    """The logger of that name; None is none."""
    return None if name is None else LOGGERS[name](folder, config)
