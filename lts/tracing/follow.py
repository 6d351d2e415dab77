"""Rules of operations that follow: they compute or move, but carry no choice.

A follow rule says which dim of each operand is which dim of the result, which dims
cannot be sharded through the operation (`blocked`), and which are reduced. One rule per
primitive, in the dict `FOLLOW`; the elementwise ones share one rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lts.tracing.flatten import Equation

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Follow:
    """What a follow rule says of one equation.

    Attributes:
      pairs: per operand, (dim of operand, dim of result) that are the same index.
      blocked_in: per operand, dims that must not be sharded.
      blocked_out: dims of the result that must not be sharded.
      units: per pair of operand 0 with a coarser granularity: (dim in, units).
      reduced: dims of operand 0 that are summed (or maximised, ...) over.
      computes: whether arithmetic or traffic of its own is due.
      cuts: the result starts a value of its own, with an edge from the operand.
    """

    pairs: tuple[Pairs, ...]
    blocked_in: tuple[tuple[int, ...], ...] = ()
    blocked_out: tuple[int, ...] = ()
    units: tuple[tuple[int, int], ...] = ()
    reduced: tuple[int, ...] = ()
    computes: bool = True
    cuts: bool = False


Rule = Callable[[Equation], Follow]

ELEMENTWISE = frozenset(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
    device_put digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igamma_grad_a igammac imag integer_pow is_finite layout_constraint le le_to lgamma
    log log1p log2 logistic lt lt_to max min mul mulhi name nan_to_num ne neg nextafter
    not one_minus_square optimization_barrier or pcast polygamma polynomial
    population_count pow pvary random_gamma_grad real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n sharding_constraint shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient
    sub tan tanh xor zeta""".split()
)
REDUCTIONS = frozenset(
    """argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    reduce_xor""".split()
)


def _identity(rank: int, without: tuple[int, ...] = ()) -> Pairs:
    return tuple((i, i) for i in range(rank) if i not in without)


def _elementwise(eq: Equation) -> Follow:
    rank = len(eq.outs[0].shape)
    pairs = tuple(
        _identity(rank) if len(operand.shape) == rank else () for operand in eq.ins
    )
    return Follow(pairs=pairs)


def _link(eq: Equation) -> Follow:
    ins, outs = eq.ins[0].shape, eq.outs[0].shape
    used_in = {i for i, _ in eq.links}
    used_out = {j for _, j in eq.links}
    return Follow(
        pairs=(eq.links,),
        blocked_in=(tuple(i for i in range(len(ins)) if i not in used_in),),
        blocked_out=tuple(j for j in range(len(outs)) if j not in used_out),
        computes=False,
    )


def _broadcast(eq: Equation) -> Follow:
    dims = eq.params["broadcast_dimensions"]
    shape, out = eq.ins[0].shape, eq.outs[0].shape
    pairs = tuple((i, j) for i, j in enumerate(dims) if shape[i] == out[j])
    return Follow(pairs=(pairs,), computes=False)


def _reduction(eq: Equation) -> Follow:
    reduced = tuple(int(axis) for axis in eq.params["axes"])
    kept = [i for i in range(len(eq.ins[0].shape)) if i not in reduced]
    pairs = (tuple((i, j) for j, i in enumerate(kept)),) * len(eq.ins)
    if _is_bitwise(eq):
        return Follow(pairs=pairs, blocked_in=(reduced,) * len(eq.ins))
    return Follow(pairs=pairs, reduced=reduced)


def _is_bitwise(eq: Equation) -> bool:
    """Whether partial results have no all-reduce: XLA knows and, or of truths only."""
    is_logical = eq.primitive in ("reduce_and", "reduce_or")
    is_truth = eq.ins[0].dtype == bool
    return eq.primitive == "reduce_xor" or (is_logical and not is_truth)


def _transpose(eq: Equation) -> Follow:
    pairs = tuple((i, j) for j, i in enumerate(eq.params["permutation"]))
    return Follow(pairs=(pairs,), computes=False)


def _reshape(eq: Equation) -> Follow:
    """Split and merge of dims: the major part of each group follows the whole.

    Dims of extent 1 are skipped; `dimensions` is an order of the dims that is taken
    first. `12 -> (4, 3)` ties 12 to 4, in units of 4, and blocks
    3, whose shards no sharding of 12 can express; a merge is the same, read backwards.
    """
    order = eq.params.get("dimensions") if eq.primitive == "reshape" else None
    shape = eq.ins[0].shape
    ins = [(i, shape[i]) for i in order or range(len(shape)) if shape[i] != 1]
    outs = [(j, n) for j, n in enumerate(eq.outs[0].shape) if n != 1]
    if math.prod(shape) == 0:  # nothing to shard
        return Follow(
            pairs=((),),
            blocked_in=(tuple(i for i, _ in ins),),
            blocked_out=tuple(j for j, _ in outs),
            computes=False,
        )
    pairs, units, blocked_in, blocked_out = [], [], [], []
    while ins and outs:
        group_in, group_out = [ins.pop(0)], [outs.pop(0)]
        size_in, size_out = group_in[0][1], group_out[0][1]
        while size_in != size_out:
            if size_in < size_out:
                group_in.append(ins.pop(0))
                size_in *= group_in[-1][1]
            else:
                group_out.append(outs.pop(0))
                size_out *= group_out[-1][1]
        (i, n), (j, m) = group_in[0], group_out[0]
        if math.gcd(n, m) > 1:
            pairs.append((i, j))
            units.append((i, math.gcd(n, m)))
        else:
            blocked_in.append(i)
            blocked_out.append(j)
        blocked_in += [dim for dim, _ in group_in[1:]]
        blocked_out += [dim for dim, _ in group_out[1:]]
    return Follow(
        pairs=(tuple(pairs),),
        blocked_in=(tuple(blocked_in),),
        blocked_out=tuple(blocked_out),
        units=tuple(units),
        computes=False,
    )


def _same_size_dims(eq: Equation) -> Follow:
    """Slices, pads, reversals: a dim whose extent or order changes is blocked."""
    shape, out = eq.ins[0].shape, eq.outs[0].shape
    changed = tuple(
        i for i, (n, m) in enumerate(zip(shape, out, strict=True)) if n != m
    )
    mixed = _moved_dims(eq)
    rest = ((),) * (len(eq.ins) - 1)
    return Follow(
        pairs=(_identity(len(shape), changed), *rest),
        blocked_in=((*changed, *mixed), *rest),
        blocked_out=(*changed, *mixed),
        computes=eq.primitive == "pad",
    )


def _moved_dims(eq: Equation) -> tuple[int, ...]:
    """Dims whose elements change places though the extent may stay."""
    if eq.primitive == "rev":
        return tuple(eq.params["dimensions"])
    config = eq.params.get("padding_config", ())  # 1 before, 1 less behind: a shift
    return tuple(i for i, edges in enumerate(config) if tuple(edges[:2]) != (0, 0))


def _slice(eq: Equation) -> Follow:
    """A static slice; picking one position of a dim (the last token) cuts the group.

    Otherwise one picked position would forbid sharding the dim everywhere else.
    """
    rule = _same_size_dims(eq)
    shape, out = eq.ins[0].shape, eq.outs[0].shape
    cuts = any(n > 1 and m == 1 for n, m in zip(shape, out, strict=True))
    return replace(rule, blocked_in=((),), computes=False, cuts=True) if cuts else rule


def _along_dim(parameter: str) -> Rule:
    """Concatenate and split: the dim along which they go is blocked."""

    def rule(eq: Equation) -> Follow:
        dim = int(eq.params[parameter])
        rank = len(eq.ins[0].shape)
        changed = (dim,) if eq.ins[0].shape[dim] != eq.outs[0].shape[dim] else ()
        return Follow(
            pairs=(_identity(rank, changed),) * len(eq.ins),
            blocked_in=((dim,),) * len(eq.ins),
            blocked_out=(dim,),
        )

    return rule


def _stack(eq: Equation) -> Follow:
    """Arrays side by side along a new dim, which must stay whole."""
    new, rank = int(eq.params["axis"]), len(eq.ins[0].shape)
    pairs = tuple((i, i + (i >= new)) for i in range(rank))
    return Follow(pairs=(pairs,) * len(eq.ins), blocked_out=(new,))


def _unstack(eq: Equation) -> Follow:
    """One array per place of a dim, which must stay whole."""
    axis, rank = int(eq.params["axis"]), len(eq.ins[0].shape)
    kept = tuple(i for i in range(rank) if i != axis % rank)
    return Follow(
        pairs=(tuple((i, j) for j, i in enumerate(kept)),),
        blocked_in=((axis % rank,),),
        computes=False,
    )


def _tile(eq: Equation) -> Follow:
    """Repetition: dims that are repeated are blocked."""
    return replace(_same_size_dims(eq), computes=True)


def _bitcast(eq: Equation) -> Follow:
    """Another reading of the same bytes: dims that it adds or removes are blocked."""
    rank_in, rank_out = len(eq.ins[0].shape), len(eq.outs[0].shape)
    rank = min(rank_in, rank_out)
    return Follow(
        pairs=(_identity(rank),),
        blocked_in=(tuple(range(rank, rank_in)),),
        blocked_out=tuple(range(rank, rank_out)),
    )


FOLLOW: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "link": _link,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "slice": _slice,
    "dynamic_slice": _same_size_dims,
    "pad": _same_size_dims,
    "rev": _same_size_dims,
    "concatenate": _along_dim("dimension"),
    "split": _along_dim("axis"),
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "bitcast_convert_type": _bitcast,
}


def is_reduction(primitive: str) -> bool:
    """Whether a primitive is a reduction that follows its operand."""
    return primitive in REDUCTIONS


def units_of(follow: Follow, dim: int) -> int | None:
    """Granularity that the rule asks of a dim of operand 0, or None."""
    return dict(follow.units).get(dim)


def blocked_dims(follow: Follow, operand: int) -> tuple[Any, ...]:
    """Dims of an operand that the rule blocks."""
    return follow.blocked_in[operand] if operand < len(follow.blocked_in) else ()
