"""Loggers that send metrics to other tools. Their packages are extras, imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from qdhuac import config as configuration
from qdhuac.config import Config
from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.keys import check_choice


@runtime_checkable
class Logger(Protocol):
    """Any object with these two methods is a logger."""

    def generation(self, line: Mapping[str, Any]) -> None:
        """Called after each generation with its line of metrics."""

    def close(self) -> None:
        """Called once, when training ends or is stopped."""


class TensorBoard:
    """Log scalars over environment steps to the folder `tensorboard` of the run."""

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
    """Log to a run of the project `qdhuac`; with WANDB_MODE=offline to the folder `wandb` of the run."""

    def __init__(self, folder: Path, config: Config) -> None:
        wandb = require("wandb", "wandb")
        try:
            self._run = wandb.init(
                project="qdhuac",
                name=folder.name,
                dir=str(folder),
                config=configuration.to_dict(config),
                reinit="create_new",  # each of several seeds has its own
            )
        except Exception as error:  # of any kind: nothing has been trained yet
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"--log wandb: {why}; try wandb login, or WANDB_MODE=offline") from None

    def generation(self, line: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in line.items() if value is not None}, step=line["generation"])

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def check(log: str | Logger | None) -> None:
    """Raise UserError for an unknown or uninstalled logger."""
    if isinstance(log, str):
        check_choice("--log", log, LOGGERS)
        require(_MODULES[log], log)
    elif log is not None and (isinstance(log, type) or not isinstance(log, Logger)):
        raise UserError(
            f"log={log!r}: expected one of {', '.join(LOGGERS)}, or an object with generation(line) and close()"
        )


def make(log: str | Logger, folder: Path, config: Config) -> Logger:
    """Return the logger of that name for a run; a logger is returned as it is."""
    return LOGGERS[log](folder, config) if isinstance(log, str) else log
