"""What must happen before JAX is used: the compilation cache and silence about it."""

from __future__ import annotations

import os
from pathlib import Path

_OFF = ("", "0", "off", "none")
# An update is a chain of small operations: in the order that uses the least memory they run 5 to 10 % faster on CPUs
# than in the order that could run most of them side by side.
_XLA_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"


def cache_folder() -> Path | None:
    """Where compiled programs are kept between runs; QDHUAC_CACHE names another folder, or is `off`."""
    wanted = os.environ.get("QDHUAC_CACHE")
    if wanted is not None:
        return None if wanted.lower() in _OFF else Path(wanted).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "qdhuac" / "jax"


def prepare_jax() -> None:
    """Set XLA's flags and turn on the persistent compilation cache, so that a task compiles once per machine."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA_FLAG}=false".strip()

    import jax

    folder = cache_folder()
    if folder is None or not is_writable(folder):
        return  # it only saves time: a read-only home must not stop a run
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def is_writable(folder: Path) -> bool:
    """The folder exists, or could be made, and can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK | os.X_OK)
