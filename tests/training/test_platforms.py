"""The paper's preset is lowered for accelerators that this machine lacks: nothing assumes a CPU."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from qdhuac import sharding as devices
from qdhuac.algorithms import specs
from qdhuac.training.build import build
from qdhuac.training.program import Program

PLATFORMS = ("cuda", "tpu")


@pytest.fixture(scope="module")
def parts():
    """Task and program of the paper's preset, and the shapes of a state and an emission."""
    task, algorithm = build(specs.make("qdhuac", "paper", {"task.backend": "mjx", "task.name": "hopper"}))
    program = Program.of(task, algorithm)
    state = jax.eval_shape(program.init, jax.random.key(0))
    return task, program, state, jax.eval_shape(program.ask, state)


def assert_lowered(function, *arguments):
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    assert exported.platforms == PLATFORMS
    shapes = jax.tree.leaves(jax.eval_shape(function, *arguments))
    assert [(x.shape, x.dtype) for x in exported.out_avals] == [(x.shape, x.dtype) for x in shapes]
    return exported


def test_the_program(parts):
    _, program, state, _ = parts
    assert_lowered(program.init, jax.eval_shape(lambda: jax.random.key(0)))
    assert_lowered(program.ask, state)
    learnt = assert_lowered(program.learn, state, jax.ShapeDtypeStruct((), jnp.int32))
    batch = specs.make("qdhuac", "paper").settings.learner.batch_size
    assert f"tensor<{2 * batch}x" in str(learnt.mlir_module())  # the joint batch is there, nothing was cut away


def test_rollouts_and_tell(parts):
    task, program, state, (emission, key) = parts
    assert_lowered(task.evaluate, emission.genotypes, key, emission.exploration)
    evaluation = jax.eval_shape(task.evaluate, emission.genotypes, key, emission.exploration)
    assert_lowered(program.tell, state, emission, evaluation)


def test_on_two_devices(parts):
    task, program, state, (emission, key) = parts
    with jax.sharding.use_abstract_mesh(AbstractMesh((2,), (devices.AXIS,), axis_types=(AxisType.Auto,))):
        # A new function each: the others were traced without a mesh.
        learnt = assert_lowered(lambda *x: program.learn(*x), state, jax.ShapeDtypeStruct((), jnp.int32))
        found = assert_lowered(lambda *x: task._rollout(*x), emission.genotypes, key, emission.exploration)
    batch = specs.make("qdhuac", "paper").settings.learner.batch_size
    assert f'<@mesh, [{{"devices"}}, {{}}]> : tensor<{batch}x' in str(learnt.mlir_module())
    assert 'manual_axes={"devices"}' in str(found.mlir_module())
