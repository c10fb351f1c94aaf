"""Damage to a robot, as a change of its MuJoCo model: weak or lost motors, blocked joints, weight, slippery ground."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError

BLOCKED, MASS, FRICTION = "blocked", "mass:", "friction"
GRAMMAR = "expected PART=FACTOR, PART=blocked, mass:BODY=FACTOR or friction=FACTOR"
Limbs = Mapping[str, tuple[str, ...]]

# What is one leg or arm of Brax's robots, by their motors. Forward is +x and left is +y. The bodies in Ant's model have
# names that do not fit this: the leg at the left and behind is its "front_right_leg".
LIMBS: dict[str, Limbs] = {
    "hopper": {"whole_leg": ("thigh_joint", "leg_joint", "foot_joint")},
    "walker2d": {
        "right_leg": ("thigh_joint", "leg_joint", "foot_joint"),
        "left_leg": ("thigh_left_joint", "leg_left_joint", "foot_left_joint"),
    },
    "halfcheetah": {"back_leg": ("bthigh", "bshin", "bfoot"), "front_leg": ("fthigh", "fshin", "ffoot")},
    "ant": {
        "left_front_leg": ("hip_1", "ankle_1"),
        "left_hind_leg": ("hip_2", "ankle_2"),
        "right_hind_leg": ("hip_3", "ankle_3"),
        "right_front_leg": ("hip_4", "ankle_4"),
    },
    "humanoid": {
        f"{side}_{limb}": tuple(f"{side}_{joint}" for joint in joints)
        for side in ("right", "left")
        for limb, joints in {
            "leg": ("hip_x", "hip_z", "hip_y", "knee"),
            "arm": ("shoulder1", "shoulder2", "elbow"),
        }.items()
    },
}

# A blocked joint gets a rotor so heavy that nothing moves it. What speed it starts with is gone within 0.1 s.
ROTOR, BRAKE = 1e6, 20.0


class Damage(NamedTuple):
    """One change; `factor` is None for a blocked part."""

    name: str  # a motor, which has the name of its joint; a limb; "mass:" and a body; or "friction"
    factor: float | None

    def __str__(self) -> str:
        return f"{self.name}={BLOCKED if self.factor is None else format(self.factor, 'g')}"


def parse(texts: Sequence[str]) -> list[Damage]:
    """What the texts say, such as `left_hind_leg=0.0`; whether the robot has such parts is not known yet."""
    found: list[Damage] = []
    for text in texts:
        name, _, value = text.partition("=")
        if not name or name == MASS or not value:
            raise UserError(f"--damage {text!r}: {GRAMMAR}")
        if name in (damage.name for damage in found):
            raise UserError(f"--damage {text!r}: {name} is there twice")
        found.append(Damage(name, _factor(text, name, value)))
    if not found:
        raise UserError(f"--damage: missing; {GRAMMAR}")
    return found


def damaged(model: Any, damages: Sequence[Damage], limbs: Limbs) -> Any:
    """A copy of a `mujoco.MjModel` with the damages; refused by name where the robot has no such part."""
    with quiet_imports():
        import mujoco

    model = copy.copy(model)
    motors = motor_names(model)
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    for damage in damages:
        if damage.name == FRICTION:
            model.geom_friction *= damage.factor  # of two geoms that touch, the larger one counts: so all of them
        elif damage.name.startswith(MASS):
            name = damage.name.removeprefix(MASS)
            if name not in bodies or not name:
                raise UserError(f"--damage {damage}: no body {name!r}; there are {', '.join(filter(None, bodies))}")
            body = 1 + bodies.index(name)
            model.body_mass[body] *= damage.factor
            model.body_inertia[body] *= damage.factor
        else:
            if damage.name not in (*motors, *limbs):
                raise UserError(
                    f"--damage {damage}: no part {damage.name!r}; the motors and their joints are {', '.join(motors)}, "
                    f"the limbs {', '.join(limbs)}"
                )
            for name in limbs.get(damage.name, (damage.name,)):
                motor = motors.index(name)
                if damage.factor is None:
                    dof = model.jnt_dofadr[model.actuator_trnid[motor, 0]]
                    model.dof_armature[dof] = ROTOR
                    model.dof_damping[dof] = ROTOR * BRAKE
                else:
                    model.actuator_gear[motor] *= damage.factor
    mujoco.mj_setConst(model, mujoco.MjData(model))  # what MuJoCo computes from masses and gears
    return model


def motor_names(model: Any) -> list[str]:
    """The motors; one without a name has that of its joint."""
    return [model.actuator(i).name or model.joint(model.actuator_trnid[i, 0]).name for i in range(model.nu)]


def _factor(text: str, name: str, value: str) -> float | None:
    weighs = name.startswith(MASS)
    changes_all = weighs or name == FRICTION
    if value == BLOCKED and not changes_all:
        return None
    low, high = (0.01 if weighs else 0.0), (100.0 if changes_all else 1.0)
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not low <= factor <= high:
        blocked = "" if changes_all else " or blocked"
        raise UserError(f"--damage {text!r}: expected a factor from {low:g} to {high:g}{blocked}")
    return factor
