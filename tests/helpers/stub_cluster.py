"""`qdhuac study` whose nodes start `stub_qdhuac.py` instead of training. STUB_VERSION: the version it claims to be."""

import os
import sys
from pathlib import Path

import qdhuac
from qdhuac import cli
from qdhuac.studies import folder, worker
from qdhuac.studies import local as jobs
from qdhuac.studies import slurm as on_slurm

STUB = [sys.executable, str(Path(__file__).parent / "stub_qdhuac.py")]


def work(order):
    jobs.COMMAND = STUB
    return worker.Worker().run(order)


class Task(on_slurm.Task):
    def __call__(self):
        jobs.COMMAND = STUB
        return super().__call__()


def main():
    worker.work, on_slurm.Task = work, Task
    qdhuac.__version__ = folder.__version__ = os.environ.get("STUB_VERSION", qdhuac.__version__)
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    import stub_cluster  # not `__main__`: nodes find it under this name

    sys.exit(stub_cluster.main())
