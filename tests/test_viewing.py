"""Looking at a run: trajectories that are the evaluation's, videos, and what the explorer answers."""

import io
import json
import socket
import threading
from http.client import HTTPConnection

import jax
import numpy as np
import pytest
from conftest import toy_config
from PIL import Image
from safetensors.numpy import load

from qdhuac.cli import main
from qdhuac.errors import UserError
from qdhuac.running import repertoire
from qdhuac.running.rundir import RunDir
from qdhuac.tasks.native import NativeLocomotion
from qdhuac.viewing import explorer, video
from qdhuac.viewing.scene import geom_mesh
from qdhuac.viewing.trajectory import Trajectory, geom_poses, simulate


@pytest.fixture(scope="module")
def walker():
    return NativeLocomotion("walker2d", episode_length=40, hidden=(8,), after_termination="stop", threads=1)


def test_what_is_seen_is_what_was_evaluated(walker):
    genotypes = jax.vmap(walker.policy.init)(jax.random.split(jax.random.key(1), 3))
    seen = simulate(walker, genotypes, 2, seed=5)
    third = jax.tree.map(lambda x: x[2:], genotypes)
    evaluation = walker.evaluate(third, jax.random.key(5))
    assert seen.reward.sum() == pytest.approx(float(evaluation.fitness[0]), rel=1e-4)
    assert seen.contacts.mean(0) == pytest.approx(np.asarray(evaluation.descriptor[0]), abs=1e-6)
    assert len(seen.qpos) == len(seen.reward) + 1 == int(evaluation.steps[0]) + 1
    positions, rotations = geom_poses(walker.robot.model, seen.qpos)
    assert np.linalg.norm(rotations, axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert not np.allclose(positions[0], positions[-1])


def test_meshes_have_the_size_of_the_geoms(walker):
    model = walker.robot.model
    meshes = [geom_mesh(model, geom) for geom in range(model.ngeom)]
    assert meshes[0] is None  # the floor
    for geom, mesh in enumerate(meshes[1:], 1):
        radius, half = model.geom_size[geom, :2]
        assert mesh.bounds[1] == pytest.approx([radius, radius, half + radius], rel=0.03)
        assert mesh.bounds[0] == pytest.approx(-mesh.bounds[1], rel=0.03)


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
        (["render", "RUN", "--output", "a.gif", "--policy", "16"], "best or a number from 0 to"),
        (["render", "OWN"], "its robot cannot be shown"),
        (["view", "OWN"], "its robot cannot be shown"),
        (["view", "RUN", "--port", "0"], "--port '0'"),
        (["view", "nowhere"], "no such folder"),
    ],
)
def test_bad_input_is_one_line(run, capsys, monkeypatch, tmp_path, arguments, text):
    monkeypatch.chdir(tmp_path)
    RunDir.create(tmp_path / "own", toy_config(task__name="own")).unlock()
    places = {"RUN": str(run.path), "OWN": str(tmp_path / "own")}
    assert main([places.get(a, a) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_run_without_generations_and_a_port_in_use(make_runner, run, capsys):
    fresh = make_runner("fresh")
    assert main(["view", str(fresh.folder.path)]) == 2
    assert "no generation has ended yet" in capsys.readouterr().err
    pytest.importorskip("viser")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(run.path), "--port", str(port)]) == 2
    assert f"--port {port}: cannot be used" in capsys.readouterr().err


class Stage:
    """A scene that only remembers."""

    def __init__(self):
        self.shown = {}

    def show(self, side, trajectory):
        self.shown[side] = trajectory


@pytest.fixture
def site(run, monkeypatch):
    """An explorer over a toy run, and a function that asks it."""
    walk = Trajectory(np.zeros((3, 1)), np.array([1.0, np.nan]), np.array([[True, False]] * 2), 0.5)
    monkeypatch.setattr(explorer, "simulate", lambda task, genotypes, index: walk)
    stage = Stage()
    server = explorer.serve(explorer.Explorer(run, None, stage), 0, 9)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(path, host=None):
        connection = HTTPConnection(*server.server_address)
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content

    yield run, stage, ask
    server.shutdown()
    server.server_close()


def test_the_explorer_answers_from_the_files(site):
    run, stage, ask = site
    status, about = ask("/run")
    assert (status, about["name"], about["first"], about["last"]) == (200, "<b>run<b>", 1, 6)
    arrays, _ = repertoire.find(run)
    assert ask("/archive?generation=6")[1]["id"] == arrays["provenance/id"].tolist()
    assert len(ask("/archive?generation=1")[1]["id"]) == 6
    best = int(arrays["fitness"].argmax())
    id = int(arrays["provenance/id"][best])
    assert about["best"] == id
    assert about["operators"] == {"0": "random", "1": "Iso+Line"}
    ever = [fitness for g in range(1, 7) for fitness in ask(f"/archive?generation={g}")[1]["fitness"]]
    assert about["fitness"] == [min(ever), max(ever)]
    _, one = ask(f"/show?side=right&id={id}")
    assert one["fitness"] == arrays["fitness"][best]
    assert one["lineage"][0]["id"] == id
    assert one["reward"] == [1.0, None]
    assert one["contacts"] == [[1, 1], [0, 0]]
    assert stage.shown["right"] is not None
    assert ask("/clear?side=right")[0] == 200
    assert stage.shown == {"right": None}
    content = load(ask(f"/policy?id={id}")[1])
    np.testing.assert_array_equal(content["x"], arrays["genotypes/x"][best])


def test_a_long_trace_is_thinned_but_no_touch_is_lost():
    contacts = np.zeros((3000, 2), bool)
    contacts[7, 1] = True
    traces = explorer._traces(Trajectory(np.zeros((3001, 1)), np.ones(3000), contacts, 0.05))
    assert len(traces["time"]) == len(traces["reward"]) == len(traces["contacts"][0]) <= explorer.MOST_POINTS
    assert [sum(foot) for foot in traces["contacts"]] == [0, 1]
    assert traces["fitness_here"] == 3000


def test_the_explorer_refuses_politely(site):
    _, stage, ask = site
    assert ask("/run", host="elsewhere.example:80")[0] == 404
    for path in (
        "/nothing",
        "/archive",
        "/archive?generation=x",
        "/show?side=top&id=1",
        "/clear?side=top",
        "/../config.toml",
    ):
        assert ask(path)[0] == 404, path
    assert ask("/show?side=left&id=99999") == (409, {"error": "id 99999: was never in this archive"})
    assert b"<b>run" not in ask("/")[1]  # the page is the same for every run: names come as JSON
    gone = set(ask("/archive?generation=3")[1]["id"]) - set(ask("/archive?generation=6")[1]["id"])
    for id in gone:  # was there once: known, but without its policy
        assert ask(f"/show?side=left&id={id}")[1]["kept"] is False
        assert stage.shown["left"] is None
        assert ask(f"/policy?id={id}")[0] == 409


def test_a_browser_that_goes_away_is_no_news(capfd):
    class Explorer:
        def run(self):
            raise BrokenPipeError

        def archive(self, generation):
            raise ZeroDivisionError

    with explorer.serve(Explorer(), 0, 9) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path, told in (("/run", False), ("/archive?generation=1", True)):
            connection = HTTPConnection(*server.server_address)
            connection.request("GET", path)
            with pytest.raises(ConnectionError):
                connection.getresponse()
            assert ("Error" in capfd.readouterr().err) is told, path
        server.shutdown()


def test_viser_s_page_comes_without_its_tracker(site):
    _, _, ask = site
    pytest.importorskip("viser")
    status, page = ask("/scene/index.html")
    assert status == 200
    assert b"assets/index" in page
    assert b"google" not in page
    assert b"gtag" not in page
    assert ask("/logo.svg")[0] == 200
    assert ask("/scene/../../__init__.py")[0] == 404


def test_the_explorer_follows_a_run_that_trains_on(site, make_runner):
    _, _, ask = site
    make_runner("<b>run<b>", again=True, run__generations=8).run()
    assert ask("/run")[1]["last"] == 8
    assert ask("/archive?generation=8")[1]["id"]
