"""Stands in for sbatch, srun, scontrol and sacct: every job of an array is a process group of this machine.

FAKE_SLURM: a folder for one file per job, with its process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

SPOOL = Path(os.environ["FAKE_SLURM"])


def sbatch(script):
    found = re.search(r"--array=0-(\d+)", Path(script).read_text())
    text = SPOOL / "script"
    text.write_bytes(Path(script).read_bytes())  # sbatch takes a copy
    for i in range(int(found[1]) + 1):
        start(text, f"7_{i}")
    print("Submitted batch job 7")


def start(text, job):
    array, task = job.split("_")
    ours = {"SLURM_JOB_ID": array, "SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task, "SLURM_PROCID": "0"}
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["bash", text], env={**os.environ, **ours}, start_new_session=True, **null)
    (SPOOL / f"{job}.job").write_text(str(process.pid))


def srun(*words):
    """Without its options, of which the last two are files for the output."""
    command = words[words.index("--error") + 2 :]
    place = {"%A": "7", "%a": os.environ["SLURM_ARRAY_TASK_ID"], "%t": "0"}
    names = [re.sub("%[Aat]", lambda m: place[m[0]], words[words.index(name) + 1]) for name in ("--output", "--error")]
    for stream, name in zip((1, 2), names, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.execvp(command[0], command)


def scontrol(_, job):
    start(SPOOL / "script", job)


def scancel(*_):
    pass


def sacct(*_):
    print("JobID|State|NodeList")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
