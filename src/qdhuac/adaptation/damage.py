"""Damage to a robot as changes of its MuJoCo model: weak motors, blocked joints, other masses, slippery ground."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError
from qdhuac.tasks.task_file import Limbs

BLOCKED, MASS, FRICTION = "blocked", "mass:", "friction"
GRAMMAR = "expected PART=FACTOR, PART=blocked, mass:BODY=FACTOR or friction=FACTOR"

# A blocked joint gets a rotor that is too heavy to move. Its damping stops any initial speed within 0.1 s.
ROTOR, BRAKE = 1e6, 20.0


class Damage(NamedTuple):
    """One change; `factor` is None for a blocked part."""

    name: str  # a motor, which has the name of its joint; a limb; "mass:" and a body; or "friction"
    factor: float | None

    def __str__(self) -> str:
        return f"{self.name}={BLOCKED if self.factor is None else format(self.factor, 'g')}"


def parse(texts: Sequence[str]) -> list[Damage]:
    """Parse damages such as `left_hind_leg=0.0`, without checking that the robot has such parts."""
    found: list[Damage] = []
    for text in texts:
        name, _, value = text.partition("=")
        if not name or name == MASS or not value:
            raise UserError(f"--damage {text!r}: {GRAMMAR}")
        if name in (damage.name for damage in found):
            raise UserError(f"--damage {text!r}: {name} is given twice")
        found.append(Damage(name, _factor(text, name, value)))
    if not found:
        raise UserError(f"--damage: missing; {GRAMMAR}")
    return found


def damaged(model: Any, damages: Sequence[Damage], limbs: Limbs) -> Any:
    """A copy of a `mujoco.MjModel` with the damages. Raise UserError if the robot has no such part."""
    with quiet_imports():
        import mujoco

        from qdhuac.tasks.model import motor_names

    model = copy.copy(model)
    motors = motor_names(model)
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    for damage in damages:
        if damage.name == FRICTION:
            model.geom_friction *= damage.factor  # the larger of two geoms in contact counts, so change all
        elif damage.name.startswith(MASS):
            name = damage.name.removeprefix(MASS)
            if name not in bodies:
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
                elif model.actuator_biastype[motor] == mujoco.mjtBias.mjBIAS_AFFINE:  # a servo still holds positions
                    for strength in (model.actuator_gainprm, model.actuator_biasprm, model.actuator_forcerange):
                        strength[motor] *= damage.factor
                else:
                    model.actuator_gear[motor] *= damage.factor
    mujoco.mj_setConst(model, mujoco.MjData(model))  # recomputes what depends on masses and gears
    return model


def _factor(text: str, name: str, value: str) -> float | None:
    low, high, blocked = 0.0, 1.0, f" or {BLOCKED}"
    if name == FRICTION or name.startswith(MASS):
        low, high, blocked = 0.0 if name == FRICTION else 0.01, 100.0, ""
    elif value == BLOCKED:
        return None
    with contextlib.suppress(ValueError):
        if low <= float(value) <= high:
            return float(value)
    raise UserError(f"--damage {text!r}: expected a factor from {low:g} to {high:g}{blocked}")
