"""A JAX model: compiled steps of gradient descent. `python3 jax_step.py STEPS` prints the number of steps and the loss."""
import os
import sys

# Allocates as it needs memory, not most of the GPU's at the start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp


def layer(weights, x):
    return jnp.tanh(x @ weights)


def loss(layers, x):
    for weights in layers:
        x = layer(weights, x)
    return jnp.mean(jnp.square(x))


@jax.jit
def step(layers, x):
    value, slopes = jax.value_and_grad(loss)(layers, x)
    return value, [weights - 0.1 * slope for weights, slope in zip(layers, slopes)]


def main(steps):
    keys = jax.random.split(jax.random.key(1), 5)
    layers = [jax.random.normal(it, (512, 512)) / 32 for it in keys[:4]]
    x = jax.random.normal(keys[4], (256, 512))
    for _ in range(steps):
        value, layers = step(layers, x)
        x = x + 0.01 * jnp.sin(x)
    print(f'{{"steps": {steps}, "loss": {float(value):.4f}}}')


main(int(sys.argv[1]))
