"""Both learners against value iteration, at a discount of 0.99, where errors of the target add up."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from probes import corridor, corridor_obs, corridor_values, learner, td3, train

LEARNERS = {
    # One critic: the lower of two is meant to be below the truth.
    "target-free": learner(discount=0.99, critics=1, v_min=-60.0, v_max=5.0, initial_temperature=0.0),
    "td3": td3(discount=0.99),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_values_are_those_of_value_iteration_within_a_tenth_of_their_range(name):
    agent, (positions, actions, exact) = LEARNERS[name], corridor_values(0.99)
    state, _ = train(agent, corridor(), 3000)
    positions, actions, exact = positions[::50], actions[::10], exact[::50, ::10]
    obs = corridor_obs(jnp.repeat(jnp.asarray(positions), len(actions)))
    found = agent.value(state, obs, jnp.tile(jnp.asarray(actions), len(positions))[:, None])
    np.testing.assert_allclose(found.reshape(exact.shape), exact, atol=0.1 * np.ptp(exact))
    assert np.ptp(exact) > 20.0
