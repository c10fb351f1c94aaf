"""The residual critic: every dense layer weight-normalised (WN), every hidden one batch-normalised (BN).

    x = BN([s, a]);  h = relu(BN(W x));  h <- h + BN(W2 relu(BN(W1 h)));  logits = W h + b

Parameters and running statistics are separate pytrees. In training mode BN uses the batch and returns new running
statistics; in evaluation mode it uses the running ones. BN makes the scale of the weights before it inert, so their
norm only sets the effective learning rate: `reparam` (Salimans and Kingma, 2016) splits it off, `project` pins it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.learning.policy import dense_init, product
from qdhuac.types import Array

Params = dict[str, dict[str, Array]]
Stats = dict[str, dict[str, Array]]

NORM_EPSILON = 1e-3
HEAD_SCALE = 0.01  # the head starts near zero, so that the initial distribution is the one its bias says


@dataclasses.dataclass(frozen=True)
class Critic:
    """The shape of one critic; its parameters and statistics live outside."""

    obs_size: int
    action_size: int
    outputs: int
    width: int = 512
    blocks: int = 2
    batch_norm: bool = True
    input_norm: bool = True
    weight_norm: str = "project"
    momentum: float = 0.99
    residual: bool = True

    def init(self, key: Array) -> tuple[Params, Stats]:
        """Random parameters and fresh running statistics."""
        inputs = self.obs_size + self.action_size
        sizes = {"stem": (inputs, self.width)}
        for i in range(self.blocks):
            sizes[f"block_{i}_a"] = sizes[f"block_{i}_b"] = (self.width, self.width)
        sizes["head"] = (self.width, self.outputs)

        params: Params = {}
        stats: Stats = {}
        for name, layer_key in zip(sizes, jax.random.split(key, len(sizes)), strict=True):
            layer = dense_init(layer_key, *sizes[name])
            if name == "head":
                layer["kernel"] *= HEAD_SCALE
            elif self.batch_norm:
                del layer["bias"]  # BN subtracts it again
            if self.weight_norm == "reparam":
                layer["gain"] = jnp.linalg.norm(layer["kernel"], axis=0)
            params[name] = layer
            if name != "head" and self.batch_norm:
                params[f"{name}_norm"], stats[f"{name}_norm"] = _norm_init(sizes[name][1])
        if self.batch_norm and self.input_norm:
            params["input_norm"], stats["input_norm"] = _norm_init(inputs)
        return self.project(params), stats

    def apply(self, params: Params, stats: Stats, obs: Array, action: Array, *, train: bool) -> tuple[Array, Stats]:
        """Logits [B, outputs], and the running statistics after this batch (unchanged in evaluation mode)."""
        new_stats = dict(stats)

        def normalise(name: str, x: Array, relu: bool) -> Array:
            if name not in stats:
                return jax.nn.relu(x) if relu else x
            y, new_stats[name] = self._norm(params[name], stats[name], x, relu, train)
            return y

        def layer(name: str, x: Array, relu: bool) -> Array:
            return normalise(f"{name}_norm", self._dense(params[name], x), relu)

        h = layer("stem", normalise("input_norm", jnp.concatenate([obs, action], axis=-1), relu=False), relu=True)
        for i in range(self.blocks):
            change = layer(f"block_{i}_b", layer(f"block_{i}_a", h, relu=True), relu=not self.residual)
            h = h + change if self.residual else change
        return self._dense(params["head"], h), new_stats

    def project(self, params: Params) -> Params:
        """With `weight_norm="project"`, hidden kernels with each column on the unit sphere; otherwise unchanged."""
        if self.weight_norm != "project":
            return params

        def unit(name: str, layer: dict[str, Array]) -> dict[str, Array]:
            # The head is spared: nothing behind it takes the scale out again.
            if name == "head" or "kernel" not in layer:
                return layer
            return layer | {"kernel": layer["kernel"] / jnp.linalg.norm(layer["kernel"], axis=0)}

        return {name: unit(name, layer) for name, layer in params.items()}

    def _dense(self, layer: dict[str, Array], x: Array) -> Array:
        kernel = layer["kernel"]
        if "gain" in layer:
            kernel = kernel * (layer["gain"] / jnp.linalg.norm(kernel, axis=0))
        y = product(x, kernel)
        return y + layer["bias"] if "bias" in layer else y

    def _norm(
        self, params: dict[str, Array], stats: dict[str, Array], x: Array, relu: bool, train: bool
    ) -> tuple[Array, dict[str, Array]]:
        if not train:
            gain = params["scale"] * jax.lax.rsqrt(stats["var"] + NORM_EPSILON)
            y = (x - stats["mean"]) * gain + params["bias"]
            return jax.nn.relu(y) if relu else y, stats
        y, mean, var = batch_norm(x, params["scale"], params["bias"], relu)
        keep = self.momentum
        return y, {
            "mean": keep * stats["mean"] + (1.0 - keep) * mean,
            "var": keep * stats["var"] + (1.0 - keep) * var,
        }


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def batch_norm(x: Array, scale: Array, bias: Array, relu: bool) -> tuple[Array, Array, Array]:
    """``scale (x - mean) / sqrt(var) + bias`` [B, width], with a ReLU or without, and mean and variance of the batch.

    The gradient is written out, which takes half as many passes over the batch. Mean and variance have none of their
    own: they are for the running statistics.
    """
    return _norm_forward(x, scale, bias, relu)[0]


def _norm_forward(
    x: Array, scale: Array, bias: Array, relu: bool
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    mean = jnp.mean(x, axis=0)
    centred = x - mean
    var = jnp.mean(jnp.square(centred), axis=0)
    inverse = jax.lax.rsqrt(var + NORM_EPSILON)
    y = centred * (scale * inverse) + bias
    y = jax.nn.relu(y) if relu else y
    return (y, mean, var), (x, scale, mean, inverse, y)


def _norm_backward(relu: bool, kept: tuple[Array, ...], cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
    x, scale, mean, inverse, y = kept
    g = jnp.where(y > 0.0, cotangents[0], 0.0) if relu else cotangents[0]
    unit = (x - mean) * inverse
    by_scale, by_bias = jnp.sum(g * unit, axis=0), jnp.sum(g, axis=0)
    # What moves the whole batch, or its spread, is taken out again by the mean and the variance.
    by_x = (scale * inverse) * (g - (by_bias + unit * by_scale) / len(x))
    return by_x, by_scale, by_bias


batch_norm.defvjp(_norm_forward, _norm_backward)


def _norm_init(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {"scale": jnp.ones(size), "bias": jnp.zeros(size)},
        {"mean": jnp.zeros(size), "var": jnp.ones(size)},
    )
