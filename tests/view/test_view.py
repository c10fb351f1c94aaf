"""Viewing a run: trajectories equal those of the evaluation, videos, and the explorer's answers."""

import io
import json
import shutil
import socket
import threading
from http.client import HTTPConnection
from pathlib import Path

import jax
import mujoco
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load
from toys import toy_config

from qdhuac.cli import main
from qdhuac.cli.view import newest
from qdhuac.errors import UserError
from qdhuac.store import repertoire
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.native import NativeTask
from qdhuac.view import explorer, scene, video
from qdhuac.view.trajectory import Trajectory, simulate


@pytest.fixture(scope="module")
def walker():
    return NativeTask("walker2d", episode_length=40, hidden=(8,), after_termination="stop", threads=1)


def test_the_shown_episode_is_the_evaluated_one(walker):
    genotypes = jax.vmap(walker.policy.init)(jax.random.split(jax.random.key(1), 3))
    seen = simulate(walker, genotypes, 2, seed=5)
    third = jax.tree.map(lambda x: x[2:], genotypes)
    evaluation = walker.evaluate(third, jax.random.key(5))
    assert seen.reward.sum() == pytest.approx(float(evaluation.fitness[0]), rel=1e-4)
    assert seen.contacts.mean(0) == pytest.approx(np.asarray(evaluation.descriptor[0]), abs=1e-6)
    assert len(seen.qpos) == len(seen.reward) + 1 == int(evaluation.steps[0]) + 1


def test_the_page_gets_each_geom_where_mujoco_has_it(walker):
    model = walker.model
    solid = [g for g in range(model.ngeom) if model.geom_type[g] != mujoco.mjtGeom.mjGEOM_PLANE]
    shapes = scene.shapes(model)
    assert [s["shape"] for s in shapes] == ["capsule"] * len(solid)
    assert [s["size"] for s in shapes] == model.geom_size[solid].tolist()
    qpos = np.tile(model.qpos0, (50, 1)) + np.linspace(0, 0.5, 50)[:, None]
    poses, dt = scene.poses(model, Trajectory(qpos, np.zeros(49), np.zeros((49, 2)), 0.01))
    assert (poses.shape, dt) == ((17, len(solid), 7), 0.03)  # every third step: at most 30 a second
    data = mujoco.MjData(model)
    data.qpos[:] = qpos[48]
    mujoco.mj_kinematics(model, data)
    np.testing.assert_allclose(poses[16, :, :3], data.geom_xpos[solid], rtol=1e-6)
    x, y, z, w = poses[16, 0, 3:]
    turned = np.zeros(9)
    mujoco.mju_quat2Mat(turned, np.array([w, x, y, z], float))
    np.testing.assert_allclose(turned, data.geom_xmat[solid[0]], atol=1e-6)


def pictures(n=6):
    for i in range(n):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:, 8 * i : 8 * i + 8, 0] = 255
        yield picture


def test_animations_have_all_frames():
    image = Image.open(io.BytesIO(video.gif(pictures(), 0.1)))
    assert (image.n_frames, image.size, image.info["duration"]) == (6, (64, 48), 100)
    pytest.importorskip("imageio_ffmpeg")
    film = video.mp4(pictures(), 0.1)
    assert film[4:8] == b"ftyp"


def test_a_missing_library_is_named(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(UserError, match=r"libEGL\.so\.1.*libosmesa6"):
        video.choose_library()
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(UserError, match=r"asks for libOSMesa\.so\.8"):
        video.choose_library()
    monkeypatch.setenv("MUJOCO_GL", "paper")
    with pytest.raises(UserError, match="egl, osmesa, glfw"):
        video.choose_library()


@pytest.fixture
def run(make_runner):
    runner = make_runner("<b>run<b>")
    runner.run()
    runner.folder.unlock()
    return runner.folder


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["render", "RUN", "--output", "a.txt"], "ends in .mp4 or .gif"),
        (["render", "RUN", "--output", "no/such/a.gif"], "no file can be written there"),
        (["render", "RUN", "--output", "a.gif", "--policy", "worst"], "--policy 'worst'"),
        (["render", "RUN", "--output", "a.gif", "--policy", "16"], "0 to 15"),
        (["render", "OWN"], "does not have its robot"),
        (["view", "OWN"], "does not have its robot"),
        (["view", "RUN", "--port", "0"], "--port: expected a whole number from 1 to 65535"),
        (["view", "nowhere"], "no such folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(run, capsys, monkeypatch, tmp_path, arguments, text):
    monkeypatch.chdir(tmp_path)
    RunDir.open(shutil.copytree(run.path, tmp_path / "own")).write_config(toy_config(task__name="own"))
    places = {"RUN": str(run.path), "OWN": str(tmp_path / "own")}
    assert main([places.get(a, a) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_without_a_folder_the_newest_run_that_can_be_shown_is_viewed(run, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 2
    assert "runs/ has no run that can be shown" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    run.path.rename(tmp_path / "runs" / "older")
    for name, settings in (("own", toy_config(task__name="own")), ("just-begun", toy_config())):
        RunDir.create(tmp_path / "runs" / name, settings).unlock()
    found = newest()
    assert (found.folder.path, found.config.task.name) == (Path("runs/older"), "halfcheetah")


def test_a_run_without_generations_and_a_port_in_use(make_runner, run, capsys):
    fresh = make_runner("fresh")
    assert main(["view", str(fresh.folder.path)]) == 2
    assert "no generation has ended yet" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(run.path), "--port", str(port)]) == 2
    assert f"--port {port}: cannot be used" in capsys.readouterr().err


@pytest.fixture
def site(run, walker, monkeypatch):
    """An explorer of a toy run, and a function that sends it requests as its page does."""
    walk = Trajectory(np.zeros((3, walker.model.nq)), np.array([1.0, np.nan]), np.array([[True, False]] * 2), 0.5)
    monkeypatch.setattr(explorer, "simulate", lambda task, genotypes, index: walk)
    with explorer.Server(explorer.Explorer(run, walker), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield run, lambda path: asked(server, path)


def asked(server, path):
    """Status and content of an answer."""
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", f"/{server.token}/{path}")
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content


def test_the_explorer_answers_from_the_files(site):
    run, ask = site
    status, about = ask("run")
    assert (status, about["name"], about["first"], about["last"]) == (200, "<b>run<b>", 1, 6)
    arrays, _ = repertoire.find(run)
    assert ask("archive?generation=6")[1]["id"] == arrays["provenance/id"].tolist()
    assert len(ask("archive?generation=1")[1]["id"]) == 6
    best = int(arrays["fitness"].argmax())
    id = int(arrays["provenance/id"][best])
    assert about["best"] == id
    assert about["operators"] == {"0": "random", "1": "Iso+Line"}
    ever = [fitness for g in range(1, 7) for fitness in ask(f"archive?generation={g}")[1]["fitness"]]
    assert about["fitness"] == [min(ever), max(ever)]
    _, one = ask(f"individual?id={id}")
    assert one["fitness"] == arrays["fitness"][best]
    assert one["lineage"][0]["id"] == id
    assert one["reward"] == [1.0, None]
    assert one["contacts"] == [[1, 1], [0, 0]]
    dt, *poses = np.frombuffer(ask(f"poses?id={id}")[1], "<f4")
    assert dt == 0.5
    assert len(poses) == 3 * 7 * len(about["shapes"])
    content = load(ask(f"policy?id={id}")[1])
    np.testing.assert_array_equal(content["x"], arrays["genotypes/x"][best])
    for name in ("", "page.js", "scene.js", "three.js", "plotly.js"):
        assert ask(name)[0] == 200, name


def test_a_long_episode_is_thinned_without_losing_a_contact():
    contacts = np.zeros((3000, 2), bool)
    contacts[7, 1] = True
    traces = explorer._traces(Trajectory(np.zeros((3001, 1)), np.ones(3000), contacts, 0.05))
    assert len(traces["time"]) == len(traces["reward"]) == len(traces["contacts"][0]) <= explorer.MAX_POINTS
    assert [sum(foot) for foot in traces["contacts"]] == [0, 1]
    assert traces["fitness_here"] == 3000


def test_the_explorer_refuses_bad_requests_with_a_message(site):
    _, ask = site
    for path in ("nothing", "archive", "archive?generation=x", "individual?id=-1", "policy?id=" + "9" * 5000):
        assert ask(path) == (404, b"not found"), path
    assert ask("individual?id=99999") == (409, {"error": "id 99999: was never in this archive"})
    assert b"<b>run" not in ask("")[1]  # the page is the same for every run: names come as JSON
    gone = set(ask("archive?generation=3")[1]["id"]) - set(ask("archive?generation=6")[1]["id"])
    assert gone
    for id in gone:  # was there once: known, but without its policy
        assert ask(f"individual?id={id}")[1]["kept"] is False
        for question in ("policy", "poses"):
            assert ask(f"{question}?id={id}") == (409, {"error": f"id {id}: its policy is not stored"})


def test_a_run_without_its_history_is_refused_in_one_line(run, walker):
    (run.path / "history.jsonl").write_bytes(b"")
    shutil.rmtree(run.path / "checkpoints")  # which has a copy
    with pytest.raises(UserError, match=r"history\.jsonl is missing or empty"):
        explorer.Explorer(run, walker)


def test_a_mistake_in_the_explorer_is_shown_in_the_terminal_and_does_not_end_it(capfd):
    class Explorer:
        def run(self):
            raise ZeroDivisionError

        def archive(self, generation):
            return {"id": float("nan")}

    with explorer.Server(Explorer(), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path, error in (("run", "ZeroDivisionError"), ("archive?generation=1", "ValueError")):
            assert asked(server, path) == (500, b"failed: the terminal of qdhuac view says why")
            assert error in capfd.readouterr().err


def test_the_explorer_follows_a_run_that_is_still_training(site, make_runner):
    _, ask = site
    make_runner("<b>run<b>", again=True, run__generations=8).run()
    assert ask("run")[1]["last"] == 8
    assert ask("archive?generation=8")[1]["id"]
