"""Shard a function of one's own: search, apply, run, and compare with XLA.

    python examples/own_function.py
    lts search examples/own_function.py:step --cluster h100:1x8

The first runs on eight forced CPU devices; take the first line of `main` out on eight
real GPUs. The second only plans: its arguments come from `step_args`.
"""

import jax
import jax.numpy as jnp

import lts

SHAPES = (512, 1024), (1024, 4096), (4096, 1024)


def step(x, up, down):
    """Two matrix products with a nonlinearity in between."""
    return x + jax.nn.gelu(x @ up) @ down


def step_args():
    """Arguments of `step`: shapes and dtypes are enough to plan."""
    return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES)


def main() -> None:
    """Print the specs, the error against the unsharded result, and XLA's verdict."""
    jax.config.update("jax_num_cpu_devices", 8)
    keys = jax.random.split(jax.random.key(0), 3)
    args = [
        jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, shape in zip(keys, SHAPES, strict=True)
    ]
    plan = lts.search(step, args, cluster=lts.Cluster.parse("h100:1x8"), budget=2_000)
    print("arguments:", plan.in_specs)
    print("result:   ", plan.out_specs)
    sharded = plan.apply(step)(*plan.device_put(args))
    expected = step(*args)
    error = jnp.abs(sharded - expected).max() / jnp.abs(expected).max()
    print(f"largest relative error: {error:.1e}")
    verification = plan.verify(step, args)
    for row in verification.rows:
        print(row.kind, row.axes, f"{row.nbytes:,} B", row.predicted, row.emitted)
    print("as predicted:", verification.ok)


if __name__ == "__main__":
    main()
