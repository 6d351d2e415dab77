"""Products that read one array, which compilers and engines run as one.

Queries, keys and values, or both halves of a gated feed-forward: their weights side by
side are one matrix. XLA's `dot-merger` pass does so for small products, engines load
the weights so in the first place.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from lts.graph import Node
from lts.tracing.build import Draft

_PRODUCT = "dot_general"


def merged_products(ops: Sequence[Node], draft: Draft) -> list[Node]:
    """The ops, each product by a weight marked with what it runs beside."""
    beside: dict[tuple, list[int]] = defaultdict(list)
    elements: dict[int, float] = {}
    for op in ops:
        eq = draft.decisions[op.index].equation
        if eq.primitive != _PRODUCT:
            continue
        (left, right), (batch_left, _) = eq.params["dimension_numbers"]
        powers = [operand.array.batch_power for operand in op.operands]
        if batch_left or sorted(powers) != [0, 1]:
            continue
        rows = powers.index(1)
        kept = op.operands[1 - rows].array
        elements[op.index] = kept.nbytes / kept.itemsize
        key = (eq.ins[rows].index, (left, right)[rows], op.trips, kept.itemsize)
        beside[key].append(op.index)
    found = list(ops)
    for group in beside.values():
        total = sum(elements[index] for index in group)
        for index in group:
            found[index] = dataclasses.replace(
                found[index], merged=total / elements[index]
            )
    return found
