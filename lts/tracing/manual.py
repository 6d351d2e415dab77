"""`shard_map` in a traced program: its specs are constraints, its body is opaque.

The mesh of the `shard_map` must be the mesh that the plan is for: its axes shard what
its specs say, in every plan. Arithmetic and collectives are those of the body on every
device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from lts.graph import Exchange
from lts.tracing.flatten import Equation, Tensor, flatten
from lts.tracing.op_rule import OpRule

_KINDS = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), "all_reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), "all_gather"),
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
}
_UNPRICED = frozenset(("ppermute", "ragged_all_to_all", "pbroadcast"))


def shard_map_rule(eq: Equation, flops: Callable[[Equation], float]) -> OpRule:
    """Factors of the dims that the specs shard; all others are whole.

    An axis (or several on one dim) is one factor, on whatever dims it lies: a body sees
    its own part of each array, and whether two dims are one index only it knows.

    Args:
      flops: of one execution of an equation of the body.
    """
    mesh = eq.params["mesh"]
    rule = OpRule(fixed={name: (size, None) for name, size in mesh.shape.items()})
    found: dict[tuple[str, ...], int] = {}
    taken: set[str] = set()

    def factor(extent: int, entry: Any) -> int:
        axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
        if axes in found:
            rule.sizes[found[axes]] = math.gcd(rule.sizes[found[axes]], extent)
            return found[axes]
        if not axes or taken & set(axes):  # whole, or an axis that is a part elsewhere
            return rule.add(extent, blocked=True)
        taken.update(axes)
        found[axes] = rule.add(extent)
        rule.fixed.update({name: (mesh.shape[name], found[axes]) for name in axes})
        return found[axes]

    def factors(tensors: Sequence[Tensor], specs: Any) -> list[list[int | None]]:
        return [
            [factor(extent, entry) for extent, entry in zip_longest(tensor.shape, spec)]
            for tensor, spec in zip(tensors, specs, strict=True)
        ]

    rule.operands = factors(eq.ins, eq.params["in_specs"])
    rule.results = factors(eq.outs, eq.params["out_specs"])
    body = flatten(_Closed(jaxpr=eq.params["jaxpr"])).equations
    own = sum(flops(e) * e.trips for e in body if e.primitive != "link")
    rule.flops = math.prod(mesh.shape.values()) * own
    rule.exchanges = [found for e in body for found in _exchanges(e)]
    unpriced = sorted({e.primitive for e in body if e.primitive in _UNPRICED})
    rule.note = f"shard_map at {eq.source}: laid out as its specs say"
    if unpriced:
        rule.note += f"; {', '.join(unpriced)} inside it: not priced"
    return rule


def _exchanges(eq: Equation) -> list[Exchange]:
    """The collectives of an equation of a body, one per array."""
    kind = _KINDS.get(eq.primitive)
    names = eq.params.get("axes", eq.params.get("axis_name", ()))
    axes = (names,) if isinstance(names, str) else tuple(names)
    if kind is None or not all(isinstance(name, str) for name in axes):
        return []
    return [
        Exchange(
            kind=kind,
            axes=axes,
            operand_bytes=operand.itemsize * math.prod(operand.shape),
            result_bytes=result.itemsize * math.prod(result.shape),
            trips=eq.trips,
        )
        for operand, result in zip(eq.ins, eq.outs, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class _Closed:
    """An open jaxpr as a closed one."""

    jaxpr: Any
    consts: tuple[Any, ...] = ()
