"""Time of a contraction: a matrix product with the sizes that one device has of it."""

import numpy as np

from lts.cost.distinct import evaluated, local_elements
from lts.cost.operators.gemm import FORMS, gemm_time_s
from lts.cost.pricing import Pricing
from lts.cost.sharding import Sharding
from lts.graph import Node, Operand

WIDENED = "w8"
"""Weights of one byte that are widened as they are loaded: arithmetic in 16 bits."""


def product_time_s(node: Node, sharding: Sharding, pricing: Pricing) -> np.ndarray:
    """Seconds of one execution of a `dot_general`.

    The side that does not grow with the batch is the weights, `n` by `k`; dims that
    both sides and the result have (heads of a latent) count as part of `n`. Products
    that read one array (queries, keys and values) run as one, and each takes its share.

    Returns:
      `[degrees, choices, batches]`.
    """
    weights, rows = _sides(node)
    form = form_of(weights, pricing)
    values, merged = pricing.values(f"gemm/{form}"), node.merged
    chip = pricing.chip_for(FORMS[form].dtype, _arithmetic(node, weights, pricing))
    (result,) = node.results
    power = max(o.array.batch_power for o in (weights, rows, result))
    stored, read = _itemsize(form), weights.array.itemsize

    def model(flops: np.ndarray, kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        m, k = flops / kept, flops / out
        n = kept / k * merged
        time = gemm_time_s(
            m,
            n,
            k,
            form=form,
            values=values,
            chip=chip,
            fused_quantisation=pricing.engine is not None,
        )
        # bytes that the weights have more or less than those of the form
        rate = values["memory_hbm"] * chip.hbm_bandwidth_bytes_per_s
        other = np.maximum(time + n * k * (read - stored) / rate, time * _LEAST)
        return np.where(read == stored, time, other) / merged

    columns = [
        (node.flops / 2 / sharding.split, power),
        (local_elements(weights, sharding), weights.array.batch_power),
        (local_elements(result, sharding), result.array.batch_power),
    ]
    return evaluated(sharding, columns, model)


_LEAST = 0.5
"""Share of a product's time that no saving of weight bytes goes below: half the bytes
of the form that it is priced as."""


def weights_of(node: Node) -> Operand:
    """The operand of a product that stands for weights."""
    return _sides(node)[0]


def form_of(weights: Operand, pricing: Pricing) -> str:
    """The fitted form (`lts.cost.operators.gemm.FORMS`) that prices a product."""
    if weights.array.itemsize > 1 or pricing.one_byte == WIDENED:
        return "bfloat16"
    return pricing.one_byte


def _arithmetic(node: Node, weights: Operand, pricing: Pricing) -> str:
    form = form_of(weights, pricing)
    if form == "bfloat16":
        return node.dtype
    wanted = FORMS[form].dtype
    known = dict(pricing.chip.peak_flops_per_s)
    return wanted if wanted in known else node.dtype  # widened: no units for it


def _itemsize(form: str) -> float:
    return FORMS[form].operand_bytes


def _sides(node: Node) -> tuple[Operand, Operand]:
    """The operand that stands for weights, and the other."""
    left, right = node.operands[:2]
    if left.array.batch_power < right.array.batch_power:
        return left, right
    return right, left
