"""The command line: bad input gives one line and exit code 2, and leaves no files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from qdhuac import __version__, cli, config
from qdhuac.algorithms import specs
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.task_file import TASKS

TRAIN = ["train", "--algorithm", "dns", "--preset", "smoke"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder):
    return {p: (p.read_bytes() if p.is_file() else None, p.lstat().st_mtime_ns) for p in folder.rglob("*")}


def refused(capsys, here, *arguments):
    """The one line that a refused command prints."""
    capsys.readouterr()
    before = everything(here)
    assert cli.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("qdhuac: error: ")
    assert err.count("\n") == 1
    assert everything(here) == before
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["fly"], ["fly", "train", "resume", "evaluate", "report", "doctor"]),
        (["train", "--task", "moon"], ["task", "moon", "hopper", "humanoid_omni"]),
        (["train", "--algorithm", "magic"], ["algorithm", "magic", "qdhuac", "dns", "map_elites"]),
        (["train", "--preset", "huge"], ["preset", "huge", "laptop", "paper", "smoke"]),
        (["train", "--backend", "unreal"], ["backend", "unreal", "native", "mjx"]),
        (["train", "--set", "archive.capasity=3"], ["archive.capasity", "archive.capacity"]),
        (["train", "--set", "archive.capacity=0"], ["archive.capacity", "at least 1"]),
        (["train", "--set", "archive.capacity"], ["archive.capacity", "section.key=value"]),
        (["train", "--set", "algorithm=dns"], ["algorithm", "--algorithm"]),
        (["train", "--seed", "-1"], ["run.seed", "at least 0"]),
        (["train", "--seed", "two"], ["run.seed", "two", "whole number"]),
        (["train", "--generations", "0"], ["run.generations"]),
        (["train", "--generations", "-3"], ["run.generations", "-3"]),
        (["train", "--generations", "9" * 20], ["run.generations", "at most"]),
        (["train", "--env-steps", "many"], ["run.env_steps", "many"]),
        (["train", "--tusk", "ant"], ["--tusk"]),
        (["train", "a\nb"], ["a b"]),
        (["train", "--run-dir", ""], ["--run-dir"]),
        (["train", "--run-dir", "."], ["--run-dir", "exists"]),
        (["train", "--run-dir", "a_file/run"], ["--run-dir", "a_file", "not a folder"]),
        (["train", "--run-dir", "a_folder"], ["a_folder", "exists", "resume"]),
        (["train", "--run-dir", "x" * 300], ["--run-dir"]),
        (["train", "--run-dir", "new/parent/" + "x" * 300], ["--run-dir"]),
        (["train", "--run-dir", "/proc/nowhere/run"], ["--run-dir"]),
        (["resume"], ["RUN_DIR"]),
        (["resume", "nowhere"], ["nowhere", "no such folder"]),
        (["resume", "a_folder"], ["a_folder", "not a run"]),
        (["resume", "a_file"], ["a_file", "not a run"]),
        (["evaluate", "a_folder"], ["a_folder", "not a run"]),
        (["evaluate", "a_folder", "--episodes", "0"], ["--episodes", "from 1"]),
        (["study", "moonshot"], ["moonshot", "benchmark", "latency"]),
        (["study", "utd", "--executor", "abacus"], ["--executor", "abacus", "local", "ray", "slurm"]),
        (["bench", "magic"], ["magic", "learner", "rollout", "archive", "replay"]),
        (["train", "--task", "own"], ["task.name", "qdhuac.train"]),
        (["train", "--algorithm", "nowhere:SPEC"], ["nowhere:SPEC", "cannot be imported"]),
        (["train", "--seeds", "0"], ["--seeds", "from 1 to 1000"]),
        (["train", "--config", "nowhere.toml"], ["--config", "nowhere.toml", "No such file"]),
        (["train", "--config", "a_file", "--preset", "smoke"], ["--preset", "--config"]),
        (["train", "--config", "a_file", "--algorithm", "dns"], ["--algorithm dns", "a_file", "qdhuac"]),
        (["train", "--config", "a_folder"], ["--config", "a_folder", "not a regular file"]),
        (["report", "a_folder"], ["a_folder", "not a run"]),
    ],
)
def test_bad_input(capsys, here, arguments, words):
    (here / "a_folder").mkdir()
    (here / "a_file").touch()
    message = refused(capsys, here, *arguments)
    assert all(word in message for word in words), message


def test_refusals_do_not_import_jax(here):
    """In a separate process, because this one has loaded JAX."""
    code = (
        "import sys; from qdhuac import cli\n"
        "assert cli.main(['train', '--set', 'run.seed=-1']) == 2\n"
        "assert cli.main(['train', '--run-dir', '.']) == 2\n"
        "assert cli.main(['resume', 'nowhere']) == 2\n"
        "heavy = {'jax', 'numpy', 'brax', 'mujoco', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_configuration_file_starts_a_run_and_options_change_it(capsys, here, toys):
    """The configuration in a run folder starts the run again; `--set` and the other options take precedence."""
    assert cli.main([*TRAIN, "--generations", "1", "--set", "archive.capacity=5", "--run-dir", "first"]) == 0
    again = ["train", "--config", "first/config.toml", "--run-dir"]
    assert cli.main([*again, "second"]) == 0
    assert (here / "second/config.toml").read_bytes() == (here / "first/config.toml").read_bytes()
    assert cli.main([*again, "third", "--seed", "3", "--generations", "2", "--set", "emitter.sigma_iso=0.5"]) == 0
    made = RunDir.open(Path("third")).read_config()
    assert (made.run.seed, made.run.generations, made.archive.capacity) == (3, 2, 5)
    assert made.settings.emitter.sigma_iso == 0.5
    assert "unknown key 'archive.capasity'" in refused(capsys, here, *again, "x", "--set", "archive.capasity=3")


def test_a_configuration_file_imports_nothing(capsys, here, monkeypatch):
    """A stored file may name code; it is imported only if the command line names it."""
    (here / "outside.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(here)
    text = config.to_toml(specs.make("dns", "smoke"))
    (here / "run.toml").write_text(text.replace('algorithm = "dns"', 'algorithm = "outside:SPEC"'))
    said = refused(capsys, here, "train", "--config", "run.toml")
    assert "outside:SPEC is not part of qdhuac; to import it add --algorithm outside:SPEC" in said
    (here / "run.toml").write_text(
        text.replace('kind = "dns"', 'kind = "outside:ARCHIVE"').replace('"dns"', '"map_elites"')
    )
    said = refused(capsys, here, "train", "--config", "run.toml")
    assert "to import it add --set archive.kind=outside:ARCHIVE" in said


def test_help_keys_lists_the_keys_of_the_chosen_algorithm_and_no_others(capsys, here):
    for algorithm in specs.ALGORITHMS:
        assert cli.main(["train", "--algorithm", algorithm, "--help-keys", "--set", "policy.hidden=[8,9]"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
        made = specs.make(algorithm, overrides={"policy.hidden": [8, 9]})
        assert "policy.hidden=[8,9]" in lines
        # What is printed is what --set takes: given back, it changes nothing.
        values = config.parse_assignments(lines)
        assert values.keys() == config.keys(made).keys() - {"algorithm", "preset"}
        assert config.to_toml(config.replace(made, values)) == config.to_toml(made)


def test_list_names_everything_that_can_be_chosen(capsys):
    assert cli.main(["list"]) == 0
    words = capsys.readouterr().out.split()
    for names in (TASKS, specs.ALGORITHMS, specs.ARCHIVES, specs.EMITTERS):
        assert set(names) <= set(words)


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"qdhuac {__version__}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], {"train"}),
        (["train", "--task", "hu"], {"humanoid", "humanoid_omni"}),
        (["train", "--se"], {"--seed", "--seeds", "--set"}),
        (["study", "be"], {"benchmark"}),
        (["study", "benchmark", "--executor", ""], {"local", "ray", "slurm"}),
        (["evaluate", ""], set()),  # the shell then offers names of files
    ],
)
def test_completion_in_bash(capsys, words, offered):
    assert cli.main(["completion", "bash"]) == 0
    line = " ".join(f"'{word}'" for word in ["qdhuac", *words])
    script = (
        capsys.readouterr().out + f'\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _qdhuac; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "--norc", "-u", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


def test_completion_in_zsh_is_that_of_bash(capsys):
    scripts = []
    for shell in ("bash", "zsh"):
        assert cli.main(["completion", shell]) == 0
        scripts.append(capsys.readouterr().out)
    first, _, rest = scripts[1].partition("\n")
    assert "bashcompinit" in first
    assert rest == scripts[0]


def test_help_names_commands_and_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("train", "resume", "evaluate", "report", "doctor", "130", "143"))


def test_train_resume_report_evaluate(capsys, here, toys):
    assert cli.main([*TRAIN, "--generations", "2", "--run-dir", "a/run"]) == 0
    out = capsys.readouterr().out
    assert "generation 2" in out
    assert "a/run/report.html" in out
    for name in ("config.toml", "metrics.jsonl", "checkpoints", "repertoire.safetensors", "report.html"):
        assert (here / "a/run" / name).exists(), name

    assert "nothing left to do" in refused(capsys, here, "resume", "a/run")
    assert "nothing left to do" in refused(capsys, here, "resume", "a/run", "--generations", "2")
    assert "nothing left to do" in refused(capsys, here, "resume", "a/run", "--env-steps", "60")
    assert "section run" in refused(capsys, here, "resume", "a/run", "--set", "archive.capacity=3")
    assert "section run" in refused(capsys, here, "resume", "a/run", "--set", "run.seed=3")

    assert cli.main(["resume", "a/run", "--generations", "4"]) == 0
    assert len((here / "a/run/metrics.jsonl").read_text().splitlines()) == 4
    assert RunDir.open(Path("a/run")).read_config().run.generations == 4

    capsys.readouterr()
    assert cli.main(["evaluate", "a/run", "--episodes", "3"]) == 0
    assert "QD score" in capsys.readouterr().out
    summary = json.loads((here / "a/run/evaluation.json").read_text())
    assert summary["episodes"] == 3
    for one in summary["individuals"]:
        assert one["fitness_mean"] == pytest.approx(one["stored_fitness"], abs=0.1)
        assert 0 < one["fitness_std"] < 0.1
        assert one["descriptor_mean"] == pytest.approx(one["stored_descriptor"], abs=1e-6)
    assert summary["stored"]["coverage"] == summary["again"]["coverage"] > 0

    (here / "a/run/report.html").unlink()
    assert cli.main(["report", "a/run"]) == 0
    assert "Evaluated again, 3 times" in (here / "a/run/report.html").read_text()


def test_one_goal_lifts_the_other(here, toys):
    """The preset's bound on steps must not end a run that was asked for more generations."""
    arguments = ["train", "--algorithm", "dns", "--preset", "laptop", "--set", "run.env_steps=60"]
    assert cli.main([*arguments, "--run-dir", "both", "--generations", "3"]) == 0
    assert len((here / "both/metrics.jsonl").read_text().splitlines()) == 1  # said with --set, so it counts
    assert cli.main(["resume", "both", "--generations", "3"]) == 0
    assert len((here / "both/metrics.jsonl").read_text().splitlines()) == 3


def test_the_backend_that_auto_chose_is_recorded_and_kept(capsys, here, toys, monkeypatch):
    def recorded():
        return RunDir.open(Path("run")).read_config().task.backend

    cli.main([*TRAIN, "--generations", "1", "--run-dir", "run"])
    assert recorded() == "native"  # tests run on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cli.main(["resume", "run", "--generations", "2"])
    assert recorded() == "native"
    cli.main([*TRAIN, "--generations", "1", "--run-dir", "other"])
    assert RunDir.open(Path("other")).read_config().task.backend == "mjx"


def test_a_run_in_use_is_refused(capsys, here, toys):
    cli.main([*TRAIN, "--generations", "1", "--run-dir", "run"])
    other = RunDir.open(Path("run"))
    other.lock()
    # The lock belongs to a file description, not to a process: a second one is refused here as well.
    assert "in use" in refused(capsys, here, "resume", "run", "--generations", "3")


def test_a_task_that_cannot_be_built_leaves_no_folder(capsys, here, toys, monkeypatch):
    from qdhuac.errors import UserError

    def fail(settings):
        raise UserError("no such robot")

    monkeypatch.setattr("qdhuac.training.build.build_task", fail)
    assert cli.main([*TRAIN, "--run-dir", "run"]) == 2
    assert not (here / "run").exists()


def test_doctor(capsys, here, monkeypatch):
    monkeypatch.setenv("QDHUAC_CACHE", str(here / "cache"))
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("python", "jax", "cpu", "cores", "memory", "cache", "ffmpeg"))


def test_doctor_finds_the_ffmpeg_that_videos_are_made_with(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    made_with = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    assert cli.main(["doctor"]) == 0
    assert os.path.basename(made_with) in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert cli.main(["doctor"]) == 0
    assert "make setup-view" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(here, number, code):
    script = (
        "import sys, toys; from qdhuac import cli; from qdhuac.training import build\n"
        "build.build_task = lambda settings: toys.ToyTask()\n"
        "build.specs.build = lambda settings, task: toys.toy_algorithm()\n"
        "sys.exit(cli.main(['train', '--algorithm', 'dns', '--run-dir', 'run', '--generations', '1000000']))"
    )
    paths = {
        "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"),
        "QDHUAC_CACHE": jax.config.jax_compilation_cache_dir,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **paths}, stdout=subprocess.PIPE, text=True
    )
    metrics = here / "run/metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size:
            break
        time.sleep(0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "finishing the current chunk" in out
    assert "resume with: qdhuac resume run" in out
    done = RunDir.open(Path("run")).read_metrics()[-1]["generation"]
    assert (here / f"run/checkpoints/{done:08d}-{0:012d}").is_dir()


def test_no_write_permission_is_refused_at_once(capsys, here, toys, monkeypatch):
    cli.main([*TRAIN, "--generations", "1", "--run-dir", "run"])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so chmod would not do
    assert "no write permission" in refused(capsys, here, *TRAIN, "--run-dir", "other")
    assert "no write permission" in refused(capsys, here, "evaluate", "run")


def test_a_run_stopped_while_it_learns_from_its_last_steps_can_be_resumed(capsys, here, toys, monkeypatch):
    """All its steps are collected, but updates and the last line of metrics are missing."""
    from qdhuac.training.loop import Trainer

    learn = Trainer._learn_what_is_owed

    def interrupted(self, going):
        if self.recorders[0].counters.generation == 1:
            self.stop.request(signal.SIGTERM)
        return learn(self, going)

    run = ["--preset", "smoke", "--env-steps", "120", "--set", "learner.utd=0.5", "run.chunk=7"]
    monkeypatch.setattr(Trainer, "_learn_what_is_owed", interrupted)
    assert cli.main(["train", *run, "--run-dir", "run"]) == 143
    assert "resume with: qdhuac resume run" in capsys.readouterr().out
    monkeypatch.setattr(Trainer, "_learn_what_is_owed", learn)
    assert cli.main(["resume", "run"]) == 0
    lines = [json.loads(line) for line in (here / "run/metrics.jsonl").read_text().splitlines()]
    assert [(line["env_steps"], line["gradient_updates"]) for line in lines] == [(60, 30), (120, 60)]
    assert "nothing left to do" in refused(capsys, here, "resume", "run")


def test_resume_is_refused_if_the_configuration_cannot_be_written(capsys, here, toys, monkeypatch):
    cli.main([*TRAIN, "--generations", "1", "--run-dir", "run"])

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qdhuac.store.run_folder.replace_file", full)
    capsys.readouterr()
    assert cli.main(["resume", "run", "--generations", "3"]) == 2
    assert "config.toml: cannot be written (No space left on device)" in capsys.readouterr().err


def test_compiled_programs_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    from qdhuac.environment import cache_folder, prepare_jax

    for name in ("QDHUAC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache/qdhuac/jax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "qdhuac/jax"
    before = jax.config.jax_compilation_cache_dir
    try:
        prepare_jax()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "qdhuac/jax")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    monkeypatch.setenv("QDHUAC_CACHE", "off")
    assert cache_folder() is None
