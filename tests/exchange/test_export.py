"""Loading a run in Python, and exported policies: the same actions everywhere, or an error."""

import ast
import importlib.util
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import qdhuac
from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.cli.common import choose
from qdhuac.errors import UserError
from qdhuac.exchange import export as write
from qdhuac.learning import run_policy
from qdhuac.learning.policy import Policy
from qdhuac.store import repertoire
from qdhuac.store.run_folder import REPERTOIRE, RunDir

HOPPER = Policy(11, 3, (32, 32))
FITNESS = np.array([1.0, 5.0, 3.0], np.float32)
DESCRIPTOR = np.array([[0.1], [0.5], [0.8]], np.float32)


def make_run(path, policy=HOPPER, fitness=FITNESS):
    """A run folder with policies for Hopper that were never trained; their weights are large enough to saturate."""
    task = {"task.name": "hopper", "task.backend": "native", "policy.hidden": policy.hidden}
    settings = specs.make("dns", "smoke", task)
    with RunDir.create(path, settings) as folder:
        for generation in (1, 2):
            folder.append_metrics({"generation": generation, "env_steps": 10 * generation, "qd_score": None})
    n = len(FITNESS)
    genotypes = jax.vmap(policy.init)(jax.random.split(jax.random.key(0), n))
    state = {
        f"algorithm/archive/genotypes/{layer}/{part}": 2.0 * np.asarray(array)
        for layer, parts in genotypes.items()
        for part, array in parts.items()
    }
    state |= {"algorithm/archive/fitness": fitness, "algorithm/archive/descriptor": DESCRIPTOR}
    provenance = {"id": np.arange(40, 40 + n), "parents": np.full((n, 2), -1), "operator": np.zeros(n)}
    provenance["generation"] = np.ones(n)
    state |= {f"algorithm/archive/provenance/{name}": x.astype(np.int32) for name, x in provenance.items()}
    metadata = {
        "task": {"name": "hopper", "backend": "native"},
        "policy": {"obs_size": policy.obs_size, "action_size": policy.action_size, "hidden": policy.hidden},
        "descriptor_bounds": ((0.0,), (1.0,)),
    }
    repertoire.write(path / REPERTOIRE, state, metadata)
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def exported(run_dir, tmp_path_factory):
    output = tmp_path_factory.mktemp("exports") / "best"
    assert cli.main(["export", str(run_dir), "--output", str(output)]) == 0
    return output


def observations(n=10_000):
    return np.random.default_rng(0).normal(scale=3.0, size=(n, HOPPER.obs_size)).astype(np.float32)


def test_load_gives_the_archive_and_its_policies(run_dir):
    run = qdhuac.load(run_dir)
    action = run.best(np.zeros(11))
    assert action.shape == (3,)
    assert (run.best.index, run.best.id, run.best.fitness) == (1, 41, 5.0)
    assert run.nearest([0.75]).index == 2
    assert [p.index for p in run.policies] == [0, 1, 2]
    assert run.config.task.name == "hopper"


def test_metrics_are_a_data_frame(run_dir):
    metrics = qdhuac.load(run_dir).metrics
    assert metrics["env_steps"].tolist() == [10, 20]
    assert metrics["qd_score"].isna().all()


@pytest.mark.parametrize(
    ("code", "heavy"), [("", {"numpy", "jax", "pandas", "onnx"}), ("qdhuac.load", {"jax", "pandas", "onnx"})]
)
def test_importing_the_package_imports_nothing_heavy(code, heavy):
    code = f"import sys, qdhuac; {code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_jax_onnx_runtime_and_numpy_act_alike(run_dir, exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    obs = observations()
    arrays = repertoire.read(run_dir / REPERTOIRE)[0]
    best = jax.tree.map(lambda leaf: leaf[1], repertoire.genotypes(arrays))
    expected = np.asarray(jax.jit(HOPPER.act)(best, obs))
    session = onnxruntime.InferenceSession(str(exported / write.ONNX), providers=["CPUExecutionProvider"])
    (by_onnx,) = session.run(["continuous_actions"], {"obs": obs})
    assert np.abs(expected).max() > 0.99  # tanh saturates
    assert np.abs(expected).min() < 0.01
    assert np.abs(by_onnx - expected).max() < 1e-5
    assert np.abs(carried(exported).Policy(exported)(obs) - expected).max() < 1e-5
    assert np.abs(qdhuac.load(run_dir).best(obs) - expected).max() < 1e-5


def carried(exported):
    """The runner as it was exported, not as it is in the package."""
    spec = importlib.util.spec_from_file_location("carried", exported / write.RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_runner_needs_numpy_alone(exported):
    tree = ast.parse((exported / write.RUNNER).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {n.split(".")[0] for n in names} - sys.stdlib_module_names == {"numpy"}


def test_the_runner_is_a_program(run_dir, exported):
    obs = observations(2)
    lines = "".join(json.dumps(row.tolist()) + "\n" for row in obs)
    command = [sys.executable, "-I", str(exported / write.RUNNER)]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    actions = np.array([json.loads(line) for line in out.splitlines()])
    np.testing.assert_allclose(actions, qdhuac.load(run_dir).best(obs), atol=1e-6)


@pytest.mark.parametrize(
    ("line", "words"),
    [("[1.0, 2.0]", "expected 11 numbers"), ("hello", "Expecting value"), (f"[{', '.join(['NaN'] * 11)}]", "finite")],
)
def test_the_runner_explains_a_bad_line(exported, line, words):
    command = [sys.executable, "-I", str(exported / write.RUNNER)]
    done = subprocess.run(command, input=f"\n{line}\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run_policy: error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_the_runner_refuses_weights_that_were_cut_short(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "robot")
    (folder / run_policy.WEIGHTS).write_bytes((exported / run_policy.WEIGHTS).read_bytes()[:-4])
    command = [sys.executable, str(folder / write.RUNNER)]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "run_policy: error: contract.json: sha256 is not that of policy.safetensors\n"


def test_the_contract_has_the_names_of_the_model(exported):
    contract = json.loads((exported / run_policy.CONTRACT).read_text())
    joints = ["thigh_joint", "leg_joint", "foot_joint"]
    positions = ["xpos/torso/z", "qpos/rooty", *(f"qpos/{j}" for j in joints)]
    velocities = [f"qvel/{j}" for j in ("rootx", "rootz", "rooty", *joints)]
    entries = contract["observations"]
    assert [o["name"] for o in entries] == positions + velocities
    assert [(o["low"], o["high"]) for o in entries] == [(None, None)] * 5 + [(-10.0, 10.0)] * 6
    assert [(a["name"], a["low"], a["high"]) for a in contract["actions"]] == [(j, -1.0, 1.0) for j in joints]
    assert contract["control_rate_hz"] == 125.0
    assert (contract["obs_size"], contract["action_size"], contract["normalisation"]) == (11, 3, "none")
    assert contract["individual"] == {"index": 1, "id": 41, "fitness": 5.0, "descriptor": [0.5]}


def test_an_individual_is_found_by_its_id(run_dir, tmp_path):
    assert cli.main(["export", str(run_dir), "--policy", "id:41", "--output", str(tmp_path / "one")]) == 0
    assert json.loads((tmp_path / "one" / run_policy.CONTRACT).read_text())["individual"]["id"] == 41


def test_each_policy_gets_its_own_folder(run_dir, tmp_path):
    assert cli.main(["export", str(run_dir), "--policy", "all", "--output", str(tmp_path / "all")]) == 0
    rows = json.loads((tmp_path / "all" / write.INDEX).read_text())
    assert [row["fitness"] for row in rows] == FITNESS.tolist()
    for row in rows:
        policy = run_policy.Policy(tmp_path / "all" / row["folder"])
        kernel = load_file(run_dir / REPERTOIRE)["genotypes/Dense_0/kernel"][row["index"]]
        np.testing.assert_array_equal(policy.layers[0][0], kernel)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"obs_size": 12}, ["obs_size", "12", "11"]),
        ({"action_size": 1}, ["action_size", "1", "3"]),
        ({"actions": []}, ["actions", "a list of 3"]),
        ({"observations": None}, ["observations", "a list of 11"]),
        ({"network": {"hidden": [3], "activation": "relu", "output": "tanh"}}, ["network", "[3]"]),
        ({"network": {"hidden": [16, 16], "activation": "tanh", "output": "tanh"}}, ["network", "tanh"]),
        ({"normalisation": "running"}, ["normalisation", "running"]),
        ({"format": "qdhuac policy 9"}, ["format", "9"]),
        ({"sha256": "of another policy"}, ["sha256"]),
    ],
)
def test_a_contract_that_does_not_fit_is_refused(exported, tmp_path, change, words):
    contract = json.loads((exported / run_policy.CONTRACT).read_text())
    (tmp_path / run_policy.CONTRACT).write_text(json.dumps(contract | change))
    (tmp_path / run_policy.WEIGHTS).write_bytes((exported / run_policy.WEIGHTS).read_bytes())
    with pytest.raises(ValueError) as error:
        run_policy.Policy(tmp_path)
    assert all(word in str(error.value) for word in words), error.value


def test_an_observation_of_another_size_is_refused(exported):
    with pytest.raises(ValueError, match="expected 11 numbers"):
        run_policy.Policy(exported)(np.zeros(12))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("3", ["--policy 3", "no policy 3", "0 to 2"]),
        ("-1", ["--policy -1", "no policy -1", "0 to 2"]),
        ("id:7", ["--policy id:7", "individual 7"]),
        ("worst", ["worst", "best", "nearest"]),
        ("nearest:", ["nearest:"]),
        ("nearest:0.3,0.7", ["nearest:0.3,0.7", "1 number", "0 to 1"]),
        ("nearest:1.5", ["nearest:1.5", "0 to 1"]),
        ("nearest:nan", ["nearest:nan", "0 to 1"]),
    ],
)
def test_bad_choices(run_dir, tmp_path, capsys, policy, words):
    assert cli.main(["export", str(run_dir), f"--policy={policy}", "--output", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert all(word in message for word in words), message
    assert not list(tmp_path.iterdir())


def test_bad_folders(run_dir, tmp_path, capsys):
    assert cli.main(["export", str(run_dir), "--output", str(tmp_path)]) == 2
    assert "--output" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_an_empty_archive_has_no_best(tmp_path):
    run = qdhuac.load(make_run(tmp_path / "run", fitness=np.full(3, -np.inf, np.float32)))
    assert run.policies == []
    for text in ("best", "0", "nearest:0.5"):
        with pytest.raises(UserError, match="empty"):
            choose(run, text)


def test_a_robot_that_changed_since_training_is_refused(tmp_path):
    run = qdhuac.load(make_run(tmp_path / "run", Policy(10, 3, (8,))))
    with pytest.raises(UserError, match=r"hopper.* has 11 observations.* trained with 10"):
        write.make_contract(run)


def test_without_onnx_the_rest_is_written(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["export", str(run_dir), "--output", str(tmp_path / "out")]) == 0
    assert "make setup-onnx" in capsys.readouterr().err
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        run_policy.CONTRACT,
        run_policy.WEIGHTS,
        write.RUNNER,
    }
