"""`qdhuac study` whose nodes start `stub_qdhuac.py` instead of training."""

import sys
from pathlib import Path

from qdhuac import cli
from qdhuac.studies import local, slurm, worker

STUB = [sys.executable, str(Path(__file__).parent / "stub_qdhuac.py")]


def work(order):
    local.COMMAND = STUB
    return worker.Worker().run(order)


class Task(slurm.Task):
    def __call__(self):
        local.COMMAND = STUB
        return super().__call__()


def main():
    local.COMMAND = STUB
    worker.work, slurm.Task = work, Task
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    import stub_cluster  # not `__main__`: nodes find it under this name

    sys.exit(stub_cluster.main())
