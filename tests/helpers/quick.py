"""Import this before JAX: how the tests' processes and all their children compile.

A CPU that is four devices, one cache of compiled programs, and no optimisation: most programs run for a moment only.
"""

import os
import tempfile


def flags(devices):
    """XLA's flags of a process with so many CPU devices."""
    quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return f"--xla_force_host_platform_device_count={devices} {quickly}"


os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "QDHUAC_TESTS", os.environ.get("JAX_COMPILATION_CACHE_DIR") or f"{tempfile.gettempdir()}/qdhuac-tests-{os.getpid()}"
)
CACHE = os.environ["QDHUAC_TESTS"]
os.environ.update(
    XLA_FLAGS=flags(4),
    QDHUAC_CACHE=CACHE,
    JAX_COMPILATION_CACHE_DIR=CACHE,
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.1",
)
