"""The files that a task consists of: task file, base, MuJoCo model, what the model includes, meshes and pictures.

A run folder keeps a copy of them, so that it is complete on another machine. Nothing in them is code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from qdhuac import files
from qdhuac.config import Config
from qdhuac.errors import UserError, reason
from qdhuac.tasks.task_file import TaskFile, base_of, builtin, read

LARGEST_BUNDLE = 64_000_000  # bytes of all files together
MODELS = ("include", "model")  # elements whose file is another MJCF


def collect(path: Path) -> dict[str, bytes]:
    """The files of a task by their paths relative to the folder of its task file.

    Raises:
        UserError: a file is missing, outside of that folder, not a regular file, or all are too large.
    """
    task, found = read(path), _Files(path.parent)
    for facts_file in filter(None, (path, base_of(path))):
        found.add(facts_file)
    found.add_model(task.model, task.model.parent)
    return found.files


def digest(files: Mapping[str, bytes]) -> str:
    """A hash of names and contents."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def facts(config: Config) -> TaskFile:
    """The facts about the task of a configuration; UserError if its files have changed since the run began."""
    t = config.task
    if t.file and t.sha256 and digest(collect(Path(t.file))) != t.sha256:
        raise UserError(f"{t.file}: this file or one that it names has changed since the run began")
    return read(Path(t.file)) if t.file else builtin(t.name)


class _Files:
    """Reads files that must be inside of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, dict[str, bytes]()
        self._left, self._models = LARGEST_BUNDLE, set[Path]()

    def add(self, path: Path) -> bytes:
        """Read a file."""
        try:
            if not path.resolve().is_relative_to(self.folder.resolve()) or ".." in path.parts:
                raise UserError(f"{path}: is outside of the folder of the task file, {self.folder}")
            content = files.read(Path(os.path.realpath(path)), self._left)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)})") from None
        self._left -= len(content)
        self.files[path.relative_to(self.folder).as_posix()] = content
        return content

    def add_model(self, path: Path, main: Path) -> None:
        """Read a model and the files that it names, which count from the folder `main` of the first model."""
        if path in self._models:
            return
        self._models.add(path)
        try:
            tree = ElementTree.fromstring(self.add(path))
        except ElementTree.ParseError as error:
            raise UserError(f"{path}: not valid XML ({error})") from None
        folders = {"": main}
        for compiler in tree.iter("compiler"):
            folders |= {name: main / value for name, value in compiler.attrib.items() if name.endswith("dir")}
        for element in tree.iter():
            for name, value in element.attrib.items():
                if not name.startswith("file") or not value:
                    continue
                if element.tag in MODELS:
                    self.add_model(main / value, main)
                else:
                    places = [folder / value for folder in folders.values()]
                    self.add(next((place for place in places if place.exists()), main / value))
