"""Probes of matrix products and of copies."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lts.calibrate.probes.base import BFLOAT16_BYTES, Chain, Family, Probe, numbers
from lts.cost.operators.base import Operator, Sizes, Values
from lts.cost.operators.elementwise import ELEMENTWISE
from lts.cost.operators.gemm import GEMMS
from lts.hardware import Chip

COPY_WIDTH = 4096
"""Elements of a row of a copy."""


def gemm_family(form: str, *, quick: bool) -> Family:
    """Products in pairs, `[m, k] @ [k, n] @ [n, k]`: the second gives the first's x.

    Args:
      form: "bfloat16" or "fp8" (x is quantised before each product).
    """
    # of a single row XLA makes a reduction, not a product
    rows = (8, 64, 1024, 4096) if quick else (8, 32, 64, 256, 1024, 4096, 8192)
    weights = [(256, 256), (1024, 1024), (4096, 4096), (14336, 4096)]
    if not quick:
        weights += [(4096, 1024), (28672, 8192)]
    return Family(
        key=f"gemm/{form}",
        operator=_pairs(GEMMS[form]),
        free=(
            "launch_s",
            "efficiency",
            "memory_hbm",
            "memory_l2_bytes_per_s",
            "sm_bytes_per_s",
        ),
        unit="FLOP",
        probes=tuple(
            Probe(
                sizes={"m": m, "n": n, "k": k},
                amount=4.0 * m * n * k,
                ways={"jnp": partial(_gemm_chain, m, n, k, form)},
            )
            for m, (n, k) in product(rows, weights)
        ),
    )


def _pairs(operator: Operator) -> Operator:
    """A product and the one back."""

    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        back = {"m": sizes["m"], "n": sizes["k"], "k": sizes["n"]}
        return operator.time_s(sizes, values, chip) + operator.time_s(
            back, values, chip
        )

    def bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        back = {"m": sizes["m"], "n": sizes["k"], "k": sizes["n"]}
        return operator.bound_s(sizes, chip) + operator.bound_s(back, chip)

    return replace(operator, time_s=time_s, bound_s=bound_s)


def _gemm_chain(m: int, n: int, k: int, form: str) -> Chain:
    dtype = jnp.bfloat16 if form == "bfloat16" else jnp.float8_e4m3fn

    def step(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        for weight in weights:
            x = jnp.dot(x.astype(dtype), weight, preferred_element_type=jnp.bfloat16)
            x = lax.optimization_barrier(x)
        return x

    weights = (
        numbers(k, n, scale=k**-0.5, dtype=dtype),
        numbers(n, k, scale=n**-0.5, dtype=dtype),
    )
    return Chain(step=step, carry=numbers(m, k), fixed=weights)


def copy_family(*, quick: bool) -> Family:
    """Copies: every element is read, multiplied by one, and written."""
    rows = (8, 512, 8192, 65536) if quick else tuple(8 * 4**i for i in range(8))
    return Family(
        key="elementwise/add",
        operator=ELEMENTWISE["kv_write"],
        free=("launch_s", "hbm", "l2_bytes_per_s"),
        unit="B",
        probes=tuple(
            Probe(
                sizes={"rows": count, "width": COPY_WIDTH},
                amount=2.0 * BFLOAT16_BYTES * count * COPY_WIDTH,
                ways={"jnp": partial(_copy_chain, count)},
            )
            for count in rows
        ),
    )


def _copy_chain(rows: int) -> Chain:
    one = jnp.ones((), jnp.bfloat16)
    return Chain(step=jnp.multiply, carry=numbers(rows, COPY_WIDTH), fixed=one)
