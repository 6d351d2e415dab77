"""Rules of decision ops: operations whose sharding is a choice of its own.

A rule gives every dim of operands and results a factor, as in Shardy: `(b, m, k),
(b, k, n) -> (b, m, n)`. A factor that no result has is a reduction; a blocked factor
must stay whole. One rule per primitive, in the dict `DECIDE`; users add theirs with
`register_rule`.
"""

import math
import re
from collections.abc import Callable, Iterator

from lts.graph import EXPERTS
from lts.tracing.expert_rules import expert_ffn, ragged_dot
from lts.tracing.flatten import Equation, Tensor
from lts.tracing.op_rule import OpRule, Rule


class UnsupportedOpError(NotImplementedError):
    """A primitive has no sharding rule; the message says how to register one."""


def _dot_general(eq: Equation) -> OpRule:
    (contract_l, contract_r), (batch_l, batch_r) = eq.params["dimension_numbers"]
    lhs, rhs = eq.ins[0].shape, eq.ins[1].shape
    rule = OpRule()
    left: list[int | None] = [None] * len(lhs)
    right: list[int | None] = [None] * len(rhs)
    for pairs in ((batch_l, batch_r), (contract_l, contract_r)):
        for i, j in zip(*pairs, strict=True):
            left[i] = right[j] = rule.add(lhs[i])
    for dims, shape in ((left, lhs), (right, rhs)):
        for i, factor in enumerate(dims):
            if factor is None:
                dims[i] = rule.add(shape[i])
    contracted = {left[i] for i in contract_l}
    out = [left[i] for i in batch_l]
    out += [f for i, f in enumerate(left) if f not in contracted and i not in batch_l]
    out += [f for j, f in enumerate(right) if f not in contracted and j not in batch_r]
    rule.operands, rule.results = [left, right], [out]
    rule.flops = 2.0 * math.prod(rule.sizes)
    return rule


def _gather(eq: Equation) -> OpRule:
    """A look-up: collapsed and fully sliced dims may be sharded, others stay whole.

    Sharding an indexed dim that is collapsed leaves a partial sum, since every device
    looks up what it holds and adds zero elsewhere.
    """
    numbers, sizes = eq.params["dimension_numbers"], eq.params["slice_sizes"]
    operand, indices = eq.ins[0].shape, eq.ins[1].shape
    out_rank = len(eq.outs[0].shape)
    rule = OpRule()
    index_dims: list[int | None] = [rule.add(n) for n in indices[:-1]]
    batching = dict(
        zip(
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            strict=True,
        )
    )
    dims: list[int | None] = []
    window: list[int | None] = []
    for dim, (extent, size) in enumerate(zip(operand, sizes, strict=True)):
        if dim in batching:
            dims.append(index_dims[batching[dim]])
            continue
        collapsed = dim in numbers.collapsed_slice_dims
        whole = size == extent
        dims.append(rule.add(extent, blocked=not (whole or collapsed)))
        if not collapsed:
            window.append(dims[-1] if whole else rule.add(size, blocked=True))
    starts, parts = iter(index_dims), iter(window)
    out = [
        next(parts) if dim in numbers.offset_dims else next(starts)
        for dim in range(out_rank)
    ]
    last = rule.add(indices[-1], blocked=True)
    rule.operands, rule.results = [dims, [*index_dims, last]], [out]
    return rule


def _scatter(eq: Equation) -> OpRule:
    """An update at indices: only dims that every update covers whole may be sharded."""
    numbers = eq.params["dimension_numbers"]
    operand, indices, updates = (tensor.shape for tensor in eq.ins[:3])
    rule = OpRule()
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(sorted(numbers.update_window_dims))
    update_dims: list[int | None] = [None] * len(updates)
    dims: list[int | None] = []
    for dim, extent in enumerate(operand):
        place = None if dim in absent else next(window)
        whole = place is not None and updates[place] == extent
        dims.append(rule.add(extent, blocked=not whole))
        if place is not None:
            same = dims[-1] if whole else rule.add(updates[place], blocked=True)
            update_dims[place] = same
    for place, factor in enumerate(update_dims):
        if factor is None:
            update_dims[place] = rule.add(updates[place], blocked=True)
    index_dims: list[int | None] = [rule.add(n, blocked=True) for n in indices]
    rule.operands, rule.results = [dims, index_dims, update_dims], [dims]
    return rule


def _mixing(dim_of: Callable[[Equation], int]) -> Rule:
    """Sorts and top-k: every dim may be sharded but the one that is mixed."""

    def rule_of(eq: Equation) -> OpRule:
        shape, mixed = eq.ins[0].shape, dim_of(eq) % len(eq.ins[0].shape)
        rule = OpRule()
        dims: list[int | None] = [
            rule.add(n, blocked=i == mixed) for i, n in enumerate(shape)
        ]
        out = list(dims)
        if eq.outs[0].shape[mixed] != shape[mixed]:
            out[mixed] = rule.add(eq.outs[0].shape[mixed], blocked=True)
        rule.operands = [list(dims) for _ in eq.ins]
        rule.results = [list(out) for _ in eq.outs]
        return rule

    return rule_of


CALLS: dict[str, Rule] = {EXPERTS: expert_ffn}
"""Rules of functions that are one op when called under `jax.jit`, by name."""

DECIDE: dict[str, Rule] = {
    "dot_general": _dot_general,
    "gather": _gather,
    "ragged_dot_general": ragged_dot,
    "sort": _mixing(lambda eq: int(eq.params["dimension"])),
    "top_k": _mixing(lambda eq: int(eq.params.get("axis", -1))),
    **CALLS,
    **dict.fromkeys(
        "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(),
        _scatter,
    ),
}

_SIDE = re.compile(r"\(([^()]*)\)")


def rule_from_notation(notation: str) -> Rule:
    """The rule that a notation such as `(i, k), (k, j) -> (i, j)` states.

    A factor named `!name` must stay whole; one that is absent from every result is a
    reduction.

    Raises:
      ValueError: if the notation cannot be read.
    """
    sides = notation.split("->")
    if len(sides) != 2 or not all(_SIDE.search(side) for side in sides):
        raise ValueError(
            f"cannot read the sharding rule {notation!r}; write operands and results "
            "as in '(i, k), (k, j) -> (i, j)'"
        )
    parsed = [
        [[part.strip() for part in dims.split(",") if part.strip()] for dims in found]
        for found in (_SIDE.findall(side) for side in sides)
    ]

    def rule_of(eq: Equation) -> OpRule:
        rule, numbers = OpRule(), dict[str, int]()

        def factors(
            tensors: tuple[Tensor, ...], sides: list[list[str]], what: str
        ) -> Iterator[list[int | None]]:
            if len(tensors) != len(sides):
                raise ValueError(
                    f"rule {notation!r} of {eq.primitive} has {len(sides)} {what}, "
                    f"the equation {len(tensors)}"
                )
            for tensor, names in zip(tensors, sides, strict=True):
                if len(names) != len(tensor.shape):
                    raise ValueError(
                        f"rule {notation!r} of {eq.primitive}: {names} has "
                        f"{len(names)} dims, the array {tensor.shape}"
                    )
                for name, extent in zip(names, tensor.shape, strict=True):
                    if name not in numbers:
                        blocked = name.startswith("!")
                        numbers[name] = rule.add(extent, blocked=blocked)
                    elif rule.sizes[numbers[name]] != extent:
                        raise ValueError(
                            f"rule {notation!r} of {eq.primitive}: {name!r} is "
                            f"{rule.sizes[numbers[name]]} in one array and {extent} in "
                            "another; give them two names"
                        )
                yield [numbers[name] for name in names]

        rule.operands = list(factors(eq.ins, parsed[0], "operands"))
        rule.results = list(factors(eq.outs, parsed[1], "results"))
        return rule

    return rule_of


def register_rule(primitive: str, notation: str) -> None:
    """Give a primitive a sharding rule, for all later traces of this process.

    Args:
      primitive: name as it stands in the jaxpr.
      notation: `(i, k), (k, j) -> (i, j)`, one bracket per operand and result, in
        order; `!k` must stay whole; a factor absent from the results is a reduction.

    Raises:
      ValueError: if the notation cannot be read.
    """
    DECIDE[primitive] = rule_from_notation(notation)


def unsupported(eq: Equation) -> UnsupportedOpError:
    """The error for an equation whose primitive has no rule."""
    ins = ", ".join(f"{t.dtype}{list(t.shape)}" for t in eq.ins)
    outs = ", ".join(f"{t.dtype}{list(t.shape)}" for t in eq.outs)
    where = f" at {eq.source}" if eq.source else ""
    return UnsupportedOpError(
        f"no sharding rule for primitive '{eq.primitive}'{where}: ({ins}) -> ({outs}). "
        f"Register one: lts.register_rule('{eq.primitive}', '(i, k), (k, j) -> "
        "(i, j)'), with one bracket per array, '!i' for a dim that must stay whole"
    )
