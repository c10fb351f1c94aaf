"""Milliseconds per critic step of QDax's PGA-ME emitter (TD3, its default shapes). Runs in an environment of its own.

    python qdax_pga_me.py STEPS

A whole `state_update` of the emitter is timed: 10 000 new transitions into its buffer, then STEPS critic steps with an
actor step for every second one.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire
from qdax.core.emitters.mutation_operators import isoline_variation
from qdax.core.emitters.pga_me_emitter import PGAMEConfig, PGAMEEmitter
from qdax.core.neuroevolution.buffers.buffer import QDTransition
from qdax.core.neuroevolution.networks.networks import MLP

OBS, ACTIONS, BATCH = 17, 6, 10


class Sizes:
    """What the emitter asks of an environment."""

    observation_size, action_size, behavior_descriptor_length, descriptor_length = OBS, ACTIONS, 2, 2
    state_descriptor_length = 2


def main() -> None:
    steps = int(sys.argv[1])
    policy = MLP((256, 256, ACTIONS), kernel_init=jax.nn.initializers.lecun_uniform(), final_activation=jnp.tanh)
    config = PGAMEConfig(env_batch_size=BATCH, num_critic_training_steps=steps, num_pg_training_steps=100)
    vary = lambda x1, x2, key: isoline_variation(x1, x2, key, iso_sigma=0.005, line_sigma=0.05)  # noqa: E731
    emitter = PGAMEEmitter(config=config, policy_network=policy, env=Sizes(), variation_fn=vary)
    key = jax.random.PRNGKey(0)
    genotypes = jax.vmap(policy.init, in_axes=(0, None))(jax.random.split(key, BATCH), jnp.zeros(OBS))
    rows = BATCH * 1000
    transitions = QDTransition.init_dummy(OBS, ACTIONS, 2)
    transitions = jax.tree.map(lambda x: jax.random.normal(key, (BATCH, rows // BATCH, *x.shape[1:])), transitions)
    fitness, descriptor = jax.random.normal(key, (BATCH,)), jax.random.uniform(key, (BATCH, 2))
    centroids = jax.random.uniform(key, (1024, 2))
    repertoire = MapElitesRepertoire.init(genotypes, fitness, descriptor, centroids)
    state = emitter.init(key, repertoire, genotypes, fitness, descriptor, {"transitions": transitions})
    update = jax.jit(
        lambda s: emitter.state_update(s, repertoire, genotypes, fitness, descriptor, {"transitions": transitions})
    )
    state = jax.block_until_ready(update(state))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        state = jax.block_until_ready(update(state))
        times.append((time.perf_counter() - start) / steps)
    print(json.dumps({"ms": 1e3 * min(times)}))


if __name__ == "__main__":
    main()
