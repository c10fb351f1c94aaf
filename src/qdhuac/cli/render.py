"""Film a policy of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import add_number, add_policy, add_seed, choose, file_name, load, require_robot
from qdhuac.errors import UserError


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac render`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    add_policy(parser, "best")
    parser.add_argument("--output", metavar="FILE", help="a file that ends in .mp4 or .gif; default RUN_DIR/best.mp4")
    add_seed(parser)
    add_number(parser, "--seconds", "simulated time; default the whole episode", high=100_000)


def run(arguments: argparse.Namespace) -> int:
    """Write an episode as a video."""
    from qdhuac.view import video

    wanted = arguments.policy
    name = wanted if wanted == "best" else f"policy-{file_name(wanted)}"
    default = Path(arguments.run_dir) / f"{name}.mp4"
    output = default if arguments.output is None else Path(arguments.output)
    found = load(arguments.run_dir)
    require_robot(found)
    video.check_output(output)
    if wanted == "all":
        raise UserError("--policy all: render films one policy")
    (policy,) = choose(found, wanted)
    video.choose_library()
    from qdhuac.environment import prepare_jax

    prepare_jax()
    from qdhuac.training.build import native_task

    print(video.render(native_task(found.config, threads=1), found, policy, output, arguments.seed, arguments.seconds))
    print(f"video: {output}")
    return 0
