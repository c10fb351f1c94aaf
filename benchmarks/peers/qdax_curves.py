"""Learning curves of QDax's own PGA-ME and QD-PG. Runs in an environment of its own, with `src` on the path.

    python qdax_curves.py {pga_me|qd_pg} TASK OUT.jsonl [--neighbours K] [--seeds N] [--generations N]

QDax's emitters, its `MAPElites`, its tasks, its scoring and its metrics. Only the cells of the repertoire are ours,
so that both are measured on the same 1024. All seeds run side by side in one program. One line per generation and
seed; a file that exists is a finished run and is left alone.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from qdax.core.containers.archive import score_euclidean_novelty
from qdax.core.emitters.dpg_emitter import DiversityPGConfig
from qdax.core.emitters.mutation_operators import isoline_variation
from qdax.core.emitters.pga_me_emitter import PGAMEConfig, PGAMEEmitter
from qdax.core.emitters.qdpg_emitter import QDPGEmitter, QDPGEmitterConfig
from qdax.core.emitters.qpg_emitter import QualityPGConfig
from qdax.core.map_elites import MAPElites
from qdax.core.neuroevolution.networks.networks import MLP
from qdax.tasks.brax import v2 as environments
from qdax.tasks.brax.v2.env_creators import create_brax_scoring_fn
from qdax.utils.metrics import default_qd_metrics

from qdhuac.archives.grid import GridArchive

BATCH, EPISODE, CELLS = 10, 1000, 1024
# Of QDax's configurations only what is not the default there; the defaults are those of docs/baselines.md.
SIGMAS = {"iso_sigma": 0.005, "line_sigma": 0.05}


def make_emitter(algorithm, env, policy, neighbours):
    if algorithm == "pga_me":
        vary = functools.partial(isoline_variation, **SIGMAS)
        return PGAMEEmitter(PGAMEConfig(env_batch_size=BATCH), policy, env, vary)
    config = QDPGEmitterConfig(
        qpg_config=QualityPGConfig(env_batch_size=4),
        dpg_config=DiversityPGConfig(env_batch_size=3),
        ga_batch_size=3,
        **SIGMAS,
    )
    novelty = functools.partial(score_euclidean_novelty, num_nearest_neighb=neighbours, scaling_ratio=1.0)
    return QDPGEmitter(config, policy, env, novelty)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=("pga_me", "qd_pg"))
    parser.add_argument("task", choices=("halfcheetah", "walker2d"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--neighbours", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=21)
    args = parser.parse_args()
    if args.out.exists():
        return
    # With JAX 0.5.3 the physics that came out of the compilation cache gave NaN for every robot.
    jax.config.update("jax_enable_compilation_cache", False)

    name = f"{args.task}_uni"
    env = environments.create(name, episode_length=EPISODE, backend="mjx")
    policy = MLP((256, 256, env.action_size), final_activation=jnp.tanh)
    scoring = create_brax_scoring_fn(
        env,
        policy,
        environments.descriptor_extractor[name],
        jax.random.PRNGKey(0),
        episode_length=EPISODE,
        deterministic=False,  # every evaluation has a start of its own, as ours
    )
    metrics = functools.partial(default_qd_metrics, qd_offset=environments.reward_offset[name] * EPISODE)
    loop = MAPElites(scoring, make_emitter(args.algorithm, env, policy, args.neighbours), metrics)
    centroids = jnp.asarray(GridArchive.cvt(CELLS, *([x] * env.descriptor_length for x in (0.0, 1.0))).centroids)

    # `MAPElites.update` taken apart, so that the physics is compiled once and the offspring's fitness can be seen.
    def start(key):
        obs = jnp.zeros(env.observation_size)
        return jax.vmap(policy.init, in_axes=(0, None))(jax.random.split(key, BATCH), obs)

    def first_tell(genotypes, fitness, descriptor, extra, key):
        return loop.init_ask_tell(genotypes, fitness, descriptor, centroids, key, extra)

    def tell(genotypes, fitness, descriptor, extra, repertoire, emitter):
        return loop.tell(genotypes, fitness, descriptor, repertoire, emitter, extra)

    start, score, first_tell, ask = (jax.jit(jax.vmap(f)) for f in (start, scoring, first_tell, loop.ask))
    tell = jax.jit(jax.vmap(tell), donate_argnums=(4, 5))
    split = jax.jit(jax.vmap(functools.partial(jax.random.split, num=4)))
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(args.seeds))
    lines, repertoire, emitter = [], None, None
    begin = time.perf_counter()
    for i in range(args.generations):
        keys, key_genotypes, key_scores, key_emitter = jnp.moveaxis(split(keys), 1, 0)
        genotypes = start(key_genotypes) if i == 0 else ask(repertoire, emitter, key_genotypes)[0]
        scored = score(genotypes, key_scores)
        if i == 0 and not jnp.all(jnp.isfinite(scored[0])):
            sys.exit("the fitness of random policies is not finite: the physics was not compiled correctly")
        if i == 0:
            repertoire, emitter, scores = first_tell(genotypes, *scored, key_emitter)
        else:
            repertoire, emitter, scores = tell(genotypes, *scored, repertoire, emitter)
        for seed in range(args.seeds):
            line = {
                "seed": seed,
                "generation": i + 1,
                "env_steps": (i + 1) * BATCH * EPISODE,
                "qd_score": float(scores["qd_score"][seed]),
                "coverage": float(scores["coverage"][seed]) / 100,  # QDax's is in per cent
                "max_fitness": float(scores["max_fitness"][seed]),
                "nonfinite": int(jnp.sum(~jnp.isfinite(scored[0][seed]))),
                "wall_s": round(time.perf_counter() - begin, 1),
            }
            lines.append(json.dumps(line))
            print(args.out.stem, lines[-1], flush=True)
    part = args.out.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    part.rename(args.out)


if __name__ == "__main__":
    main()
