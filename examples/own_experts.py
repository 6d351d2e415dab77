"""A mixture of experts of one's own: tokens and experts on the same GPUs.

    python examples/own_experts.py

Routing is the caller's; the experts are one op, `lts.expert_ffn`. Prices a layout by
hand (tokens and experts over all eight devices) and what a search finds, runs the one
by hand, and compares with XLA. Runs on eight forced CPU devices; take the second line
of `main` out on eight real GPUs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import lts

TOKENS, WIDTH, EXPERTS, HIDDEN, TOP_K = 4096, 512, 32, 256, 4


def layer(x, router, gate, up, down):
    """Tokens `[t, d]` through the best four of 32 experts, added to what they were."""
    scores = jax.nn.softmax(x @ router)
    weight, expert = jax.lax.top_k(scores, TOP_K)
    return x + lts.expert_ffn(x, weight, expert, gate, up, down)


def main() -> None:
    """Print step times, the error against the unsharded result, XLA's collectives."""
    jax.config.update("jax_num_cpu_devices", 8)
    shapes = {
        "x": (TOKENS, WIDTH),
        "router": (WIDTH, EXPERTS),
        "gate": (EXPERTS, WIDTH, HIDDEN),
        "up": (EXPERTS, WIDTH, HIDDEN),
        "down": (EXPERTS, HIDDEN, WIDTH),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    args = [
        jax.random.normal(key, shape) / shape[-2] ** 0.5
        for key, shape in zip(keys, shapes.values(), strict=True)
    ]
    mesh = jax.make_mesh((8,), ("gpu",))
    specs = {name: P("gpu") for name in ("x", "gate", "up", "down")}
    plan = lts.price(layer, args, mesh=mesh, specs=specs)
    found = lts.search(layer, args, mesh=mesh, budget=500)
    print(f"by hand: {plan.metrics.step_time_s * 1e6:.0f} us", plan.in_specs)
    print(f"found:   {found.metrics.step_time_s * 1e6:.0f} us", found.in_specs)
    sharded = plan.apply(layer)(*plan.device_put(args))
    expected = layer(*args)
    error = jnp.abs(sharded - expected).max() / jnp.abs(expected).max()
    print(f"largest relative error: {error:.1e}")
    for row in plan.verify(layer, args).rows:
        print(row.kind, row.axes, f"{row.nbytes:,} B", row.predicted, row.emitted)


if __name__ == "__main__":
    main()
