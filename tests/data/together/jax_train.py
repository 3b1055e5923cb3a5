"""A small training step in JAX on the GPU, recorded by its own profiler; writes what JAX says of it."""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp

WIDTH, ROWS = 2048, 1024


def loss_of(weights, x, y):
    """The loss of a network of two layers."""
    hidden = jax.nn.gelu(x @ weights["up"])
    return jnp.mean((hidden @ weights["down"] - y) ** 2)


@jax.jit
def train_step(weights, x, y):
    """One update."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, weights, gradients), loss


def main() -> None:
    """Records four steps."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {"up": jax.random.normal(keys[0], (WIDTH, 4 * WIDTH)) * 0.02}
    weights["down"] = jax.random.normal(keys[1], (4 * WIDTH, WIDTH)) * 0.02
    x, y = (jax.random.normal(key, (ROWS, WIDTH)) for key in keys[2:])
    for _ in range(3):
        weights, loss = train_step(weights, x, y)
    loss.block_until_ready()
    began = time.perf_counter_ns()
    for _ in range(20):
        weights, loss = train_step(weights, x, y)
    loss.block_until_ready()
    unprofiled_ns = (time.perf_counter_ns() - began) // 20
    steps = []
    with jax.profiler.trace(sys.argv[1]):
        for number in range(4):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                began = time.perf_counter_ns()
                weights, loss = train_step(weights, x, y)
                loss.block_until_ready()
                steps.append(time.perf_counter_ns() - began)
    cost = train_step.lower(weights, x, y).compile().cost_analysis()
    sys.stdout.write(
        json.dumps({"unprofiled_ns": unprofiled_ns, "steps_ns": steps, "cost": dict(cost or {})})
    )


if __name__ == "__main__":
    main()
