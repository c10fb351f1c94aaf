"""Adaptation to damage: the search, the damaged models, and errors."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_export import make_run

import qdhuac
from qdhuac import cli, config
from qdhuac.adaptation import search as ite
from qdhuac.adaptation.damage import damaged, parse
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.model import load, motor_names
from qdhuac.tasks.native import NativeTask
from qdhuac.tasks.task_file import TASKS, builtin

KEY, STEPS = jax.random.key(3), 80
LIMBS = {name: builtin(name).limbs for name in TASKS}

# The search


def toy(n=144, seed=0):
    """Individuals on the unit square, all about equally fit; after the damage only those in one corner still are."""
    rng = np.random.default_rng(seed)
    descriptor = rng.uniform(size=(n, 2))
    prior = 1000.0 + 100.0 * rng.uniform(size=n)
    survives = np.linalg.norm(descriptor - [0.1, 0.9], axis=1) < 0.25
    return descriptor, prior, np.where(survives, 0.95, 0.1) * prior


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_a_working_individual_in_fewer_trials_than_random_choice(seed):
    descriptor, prior, now = toy(seed=seed)
    trials, _ = ite.search(descriptor, prior, lambda i: now[i], trials=100)
    survivors = int((now > 900).sum())
    by_chance = (len(now) + 1) / (survivors + 1)  # the mean of trials until the first survivor, without replacement
    assert ite.best(trials).fitness > 900
    assert len(trials) < 0.7 * by_chance
    assert len({trial.index for trial in trials}) == len(trials)


def test_mean_and_deviation_equal_the_formulas_of_a_gaussian_process():
    descriptor, prior, now = (x[:30] for x in toy())
    prior, now, tried = prior / 100.0, now / 100.0, [4, 17, 8, 29]

    def kernel(a, b):
        r = np.sqrt(5.0) * np.linalg.norm(a[:, None] - b[None], axis=-1) / 0.4
        return (1.0 + r + r**2 / 3.0) * np.exp(-r)

    inverse = np.linalg.inv(kernel(descriptor[tried], descriptor[tried]) + 0.001 * np.eye(4))
    cross = kernel(descriptor, descriptor[tried])
    mean, std = ite.posterior(descriptor, prior, tried, now[tried])
    np.testing.assert_allclose(mean, prior + cross @ inverse @ (now - prior)[tried], atol=1e-8)
    variance = 1.0 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    np.testing.assert_allclose(std, np.sqrt(variance), atol=1e-6)


def test_the_first_trial_is_the_best_of_the_archive_and_enough_without_damage():
    descriptor, prior, _ = toy()
    for trials in (10, 1):  # also when it is the last trial that was enough
        (only,), enough = ite.search(descriptor, prior, lambda i: prior[i], trials=trials)
        assert enough
    assert (only.index, only.expected) == (prior.argmax(), pytest.approx(prior.max()))


def test_a_choice_is_the_highest_mean_plus_a_share_of_the_deviation():
    descriptor, prior, now = toy()
    (first, second), _ = ite.search(descriptor, prior, lambda i: now[i], trials=2)
    scale = np.ptp(prior)
    mean, std = ite.posterior(descriptor, prior / scale, [first.index], now[[first.index]] / scale)
    assert second.index == (mean + 0.05 * std).argmax()
    assert second.expected == pytest.approx(scale * mean[second.index])


@pytest.mark.parametrize(
    ("found", "expected", "enough"),
    [(91.0, 100.0, True), (89.0, 100.0, False), (200.0, 100.0, True), (-100.0, -100.0, False), (0.0, 0.0, False)],
)
def test_it_stops_at_nine_tenths_of_the_highest_expectation(found, expected, enough):
    assert ite.good_enough(found, expected) is enough


def test_a_failed_trial_is_never_the_best_and_lowers_the_expectation_for_similar_ones():
    descriptor, prior, now = toy()
    prior[0] = 0.0  # what a failed trial counts as
    failing = np.where(now > 900, now, np.nan)
    trials, _ = ite.search(descriptor, prior, lambda i: failing[i], trials=60)
    assert np.isnan(trials[0].fitness)
    assert len(trials) < 20
    assert ite.best(trials).fitness > 900
    assert np.isnan(ite.best(trials[:1]).fitness)


def test_each_individual_is_tried_at_most_once():
    descriptor, prior, _ = (x[:5] for x in toy())
    trials, enough = ite.search(descriptor, prior, lambda i: np.nan, trials=100)
    assert not enough
    assert sorted(trial.index for trial in trials) == [0, 1, 2, 3, 4]


# The damage


@functools.cache
def task(name, damage=None):
    def change(model):
        return damaged(model, parse([damage]), LIMBS[name]) if damage else model

    return NativeTask(name, episode_length=STEPS, after_termination="stop", hidden=(16,), threads=1, change=change)


@functools.cache
def healthy(name):
    return load(builtin(name))


def changes(name, *damages):
    """The damaged model; which fields differ from the healthy one's, and in which rows."""
    before, after = healthy(name), damaged(healthy(name), parse(damages), LIMBS[name])
    found = {}
    for field in dir(before):
        if isinstance(value := getattr(before, field), np.ndarray) and not field.startswith("_"):
            differs = ~np.isclose(value, getattr(after, field), rtol=1e-9, atol=1e-12, equal_nan=True)
            if differs.any():
                found[field] = np.unique(np.nonzero(differs)[0]).tolist()
    return after, found


def row(names, name):
    return [names.index(name)]


def test_a_factor_of_one_changes_nothing():
    for name in LIMBS:
        motor, body = motor_names(healthy(name))[0], healthy(name).body(1).name
        assert changes(name, "friction=1", f"mass:{body}=1", f"{motor}=1")[1] == {}


def test_a_weak_motor_changes_that_motor_only():
    before, (after, found) = healthy("halfcheetah"), changes("halfcheetah", "fshin=0.25")
    motor = row(motor_names(before), "fshin")
    assert found == {"actuator_gear": motor, "actuator_acc0": motor}
    np.testing.assert_allclose(after.actuator_gear[motor], 0.25 * before.actuator_gear[motor])


def test_a_weak_servo_is_weaker_and_holds_the_same_position():
    before, (after, found) = healthy("hexapod"), changes("hexapod", "left_middle_tibia=0.5")
    servo = row(motor_names(before), "left_middle_tibia")
    strength = {"actuator_gainprm", "actuator_biasprm", "actuator_forcerange"}
    assert found == dict.fromkeys(strength, servo)
    for field in strength:
        np.testing.assert_allclose(getattr(after, field)[servo], 0.5 * getattr(before, field)[servo])


def test_damage_to_a_limb_is_damage_to_all_its_motors():
    motors = motor_names(healthy("ant"))
    leg = sorted(row(motors, "hip_2") + row(motors, "ankle_2"))
    assert changes("ant", "left_hind_leg=0.0")[1] == {"actuator_gear": leg, "actuator_acc0": leg}


def test_friction_is_scaled_everywhere():
    before, (after, found) = healthy("walker2d"), changes("walker2d", "friction=0.3")
    assert found == {"geom_friction": list(range(before.ngeom))}
    np.testing.assert_allclose(after.geom_friction, 0.3 * before.geom_friction)


def test_mass_scales_one_body_with_its_inertia():
    before, (after, found) = healthy("halfcheetah"), changes("halfcheetah", "mass:torso=2")
    body = before.body("torso").id
    assert (found.pop("body_mass"), found.pop("body_inertia")) == ([body], [body])
    # What MuJoCo computes from the masses.
    derived = {"body_subtreemass", "body_invweight0", "dof_invweight0", "dof_M0", "actuator_acc0"}
    assert set(found) <= derived | {"cam_poscom0", "light_poscom0"}
    assert after.body_mass[body] == 2 * before.body_mass[body]
    assert after.body_subtreemass[0] == pytest.approx(before.body_mass.sum() + before.body_mass[body])


def test_a_blocked_joint_changes_that_joint_alone():
    _, found = changes("ant", "ankle_3=blocked")
    dof = [healthy("ant").joint("ankle_3").dofadr[0]]
    assert (found.pop("dof_armature"), found.pop("dof_damping")) == (dof, dof)
    assert set(found) <= {"body_invweight0", "dof_invweight0", "dof_M0", "actuator_acc0"}


def rollout(name, damage=None, zeroed=()):
    """Observations [B, T, obs] of four wild policies, whose `zeroed` actions are 0."""
    chosen = task(name, damage)
    genotypes = jax.vmap(chosen.policy.init)(jax.random.split(KEY, 4))
    last = jax.tree.map(lambda x: 4.0 * np.array(x), genotypes["Dense_1"])
    for motor in zeroed:
        last["kernel"][..., motor] = last["bias"][..., motor] = 0.0
    found = chosen.evaluate({**genotypes, "Dense_1": jax.tree.map(jnp.asarray, last)}, KEY)
    return np.asarray(found.transitions.obs)


@pytest.mark.parametrize(("name", "damage"), [("halfcheetah", "bthigh=0"), ("ant", "right_front_leg=0")])
def test_a_lost_motor_is_an_action_of_zero(name, damage):
    part = damage.removesuffix("=0")
    motors = motor_names(healthy(name))
    lost = [motors.index(motor) for motor in LIMBS[name].get(part, (part,))]
    np.testing.assert_array_equal(rollout(name, damage), rollout(name, zeroed=lost))
    assert np.abs(rollout(name, damage) - rollout(name)).max() > 0.1


@pytest.mark.parametrize(("name", "joint", "first"), [("halfcheetah", "bthigh", 1), ("ant", "ankle_3", 2)])
def test_a_blocked_joint_does_not_move_and_the_others_do(name, joint, first):
    column = healthy(name).joint(joint).qposadr[0] - first  # observations begin with the positions, but the first

    def span(obs):
        lived = obs[0][(obs[0] != 0).any(-1)]
        return np.ptp(lived[:, column]), np.ptp(lived, axis=0).max()

    moved, _ = span(rollout(name))
    stuck, others = span(rollout(name, f"{joint}=blocked"))
    assert moved > 0.1
    assert stuck < 0.03
    assert others > 0.1


def test_every_motor_of_a_limb_exists_and_belongs_to_no_other_limb():
    for name, limbs in LIMBS.items():
        motors = motor_names(healthy(name))
        parts = [motor for limb in limbs.values() for motor in limb]
        assert set(parts) <= set(motors)
        assert len(parts) == len(set(parts))
        assert not set(limbs) & set(motors)  # a name means one thing


def test_the_legs_of_the_ant_are_where_their_names_say():
    model = healthy("ant")
    for leg, (hip, _) in LIMBS["ant"].items():
        x, y = model.body_pos[model.joint(hip).bodyid[0], :2]
        assert ("front" in leg, "left" in leg) == (x > 0, y > 0)


# The command


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_the_command_prints_how_to_export_the_individual(run_dir, tmp_path, capsys):
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    arguments = ["adapt", str(run_dir), "--damage", "foot_joint=0.2", "mass:torso=1.5", "--trials", "3", "--seed", "1"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["damage"] == ["foot_joint=0.2", "mass:torso=1.5"]
    run = qdhuac.load(run_dir)
    trials, best = found["trials"], found["best"]
    assert trials[0]["index"] == run.best.index
    assert best["fitness_after"] == max(trial["fitness_after"] for trial in trials)
    assert best["fitness_before"] == run.fitness[best["index"]]

    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    command = next(line for line in out.splitlines() if "qdhuac export" in line).split("qdhuac ")[1].split()
    command[command.index("DIR")] = str(tmp_path / "out")
    assert cli.main(command) == 0
    assert json.loads((tmp_path / "out" / "contract.json").read_text())["individual"]["index"] == best["index"]
    assert before == {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--damage", "PART=FACTOR"]),
        (["--damage", "foot_joint"], ["foot_joint", "PART=FACTOR"]),
        (["--damage", "=0"], ["PART=FACTOR"]),
        (["--damage", "foot_joint=half"], ["half", "from 0 to 1 or blocked"]),
        (["--damage", "foot_joint=1.5"], ["1.5", "from 0 to 1"]),
        (["--damage", "foot_joint=nan"], ["nan", "from 0 to 1"]),
        (["--damage", "friction=-1"], ["friction=-1", "from 0 to 100"]),
        (["--damage", "friction=blocked"], ["friction", "from 0 to 100"]),
        (["--damage", "mass:torso=0"], ["mass:torso=0", "from 0.01 to 100"]),
        (["--damage", "foot_joint=0", "foot_joint=1"], ["foot_joint", "twice"]),
        (["--damage", "wing=0"], ["no part 'wing'", "thigh_joint, leg_joint, foot_joint", "whole_leg"]),
        (["--damage", "rootx=blocked"], ["no part 'rootx'", "thigh_joint"]),
        (["--damage", "mass:wing=2"], ["no body 'wing'", "torso, thigh, leg, foot"]),
        (["--damage", "foot_joint=0", "--trials", "0"], ["--trials", "1"]),
        (["--damage", "foot_joint=0", "--seed", "x"], ["--seed", "x"]),
    ],
)
def test_a_mistake_is_reported_in_one_line(run_dir, arguments, words, capsys):
    assert cli.main(["adapt", str(run_dir), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_without_scikit_learn_it_says_what_to_install(run_dir, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert cli.main(["adapt", str(run_dir), "--damage", "foot_joint=0"]) == 2
    assert "make setup-adapt" in capsys.readouterr().err


def test_a_run_without_model_or_individuals_is_refused(tmp_path, capsys):
    make_run(tmp_path / "empty", fitness=np.full(3, -np.inf, np.float32))
    own = make_run(tmp_path / "own")
    with RunDir.open(own) as folder:
        folder.write_config(config.replace(folder.read_config(), {"task.name": config.OWN}))
    for name, words in (("empty", "the archive is empty"), ("own", "its task is your own")):
        assert cli.main(["adapt", str(tmp_path / name), "--damage", "foot_joint=0"]) == 2
        assert words in capsys.readouterr().err
