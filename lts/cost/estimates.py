"""How far an estimate may be off, and what it rests on.

Errors are medians over measured points that were held out of a fit. They say how good
the model of one operator is; what an engine adds has an error of its own
(`lts.cost.profile`).
"""

from typing import NamedTuple

from lts.calibration import load
from lts.cost.attended import attention_key
from lts.cost.experts import sizes_of
from lts.cost.fused_experts import form_of as experts_form
from lts.cost.pricing import Pricing
from lts.cost.products import form_of, weights_of
from lts.graph import EXPERTS, Node

MEASURED, SCALED, BOUND = "measured", "scaled", "bound"
"""A fit on this chip; a fit on another one, or another kernel, scaled by its
specification; achieved rates of arithmetic and memory alone."""

ACROSS_GENERATIONS = 0.2
"""Median error of a fit on another chip.

Source: A100 from the parameters of H100, prefill and decode attention, 17% and 28%;
H200 from those of H100 is within 5% (`experiments/silicon_accuracy.py`).
"""
_TRAFFIC = 0.1
"""Of kernels that move bytes: median error of the elementwise fits is 3 to 6%, but they
are on other kernels."""
_FURTHEST = "a100", "all_reduce/internode"
"""The only collectives across nodes that were measured: their fit's error stands for
all."""


class Estimate(NamedTuple):
    """Relative error of a time, and what it rests on."""

    error: float
    provenance: str


def of_node(node: Node, pricing: Pricing) -> Estimate:
    """Of a node's own work, without its collectives."""
    if node.attention is not None:
        return _of_fit(attention_key(node), pricing)
    if node.primitive == "dot_general" and not node.fixed:
        return _of_fit(f"gemm/{form_of(weights_of(node), pricing)}", pricing)
    if node.primitive == EXPERTS:
        if pricing.engine is None:
            return Estimate(ACROSS_GENERATIONS, BOUND)
        return _of_fit(f"moe/{experts_form(sizes_of(node), pricing)}", pricing)
    return Estimate(_TRAFFIC, BOUND)


def of_collectives(across: bool, pricing: Pricing) -> Estimate:
    """Of a reshard or a hand-over; `across`: whether it crosses nodes."""
    if across:
        chip, key = _FURTHEST
        return Estimate(load(chip).fit(key).median_error, SCALED)
    return _of_fit("all_reduce/nccl/8", pricing)


def _of_fit(key: str, pricing: Pricing) -> Estimate:
    fit = pricing.fit(key)
    if pricing.is_measured(key):
        return Estimate(fit.median_error, MEASURED)
    return Estimate(max(fit.median_error, ACROSS_GENERATIONS), SCALED)


def combined(times_s: list[float], estimates: list[Estimate]) -> float:
    """Relative error of a sum whose parts err alike; 0 of nothing."""
    total = sum(times_s)
    off = sum(t * e.error for t, e in zip(times_s, estimates, strict=True))
    return off / total if total else 0.0
