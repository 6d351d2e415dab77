"""Rules of ops that mix some dims and leave the others alone.

Sorts, running sums, Fourier transforms and reductions by a function of one's own: the
mixed dims must be whole in the op, not in the arrays around it.
"""

import math
from collections.abc import Callable, Collection

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule


def _mixed(eq: Equation, mixed: Collection[int]) -> OpRule:
    """Operands and results of one rank, whole along `mixed`."""
    rule, shape = OpRule(), eq.ins[0].shape
    dims: list[int | None] = [
        rule.add(n, blocked=i in mixed) for i, n in enumerate(shape)
    ]
    out = [
        factor if m == n else rule.add(m, blocked=True)
        for factor, n, m in zip(dims, shape, eq.outs[0].shape, strict=True)
    ]
    rule.operands = [list(dims) for _ in eq.ins]
    rule.results = [list(out) for _ in eq.outs]
    return rule


def _mixing(dim_of: Callable[[Equation], int]) -> Rule:
    def rule_of(eq: Equation) -> OpRule:
        return _mixed(eq, {dim_of(eq) % len(eq.ins[0].shape)})

    return rule_of


def fft(eq: Equation) -> OpRule:
    """A transform of the last dims.

    Arithmetic by the convention of FFTW's benchmarks (fftw.org/speed/method.html):
    `5 n log2 n` for a complex transform of n points, half of that for a real one.
    """
    lengths, rank = eq.params["fft_lengths"], len(eq.ins[0].shape)
    rule = _mixed(eq, set(range(rank - len(lengths), rank)))
    points = math.prod(lengths)
    batch = math.prod(eq.ins[0].shape[: rank - len(lengths)])
    is_real = any("complex" not in str(t.dtype) for t in (eq.ins[0], eq.outs[0]))
    if points > 1:
        rule.flops = (2.5 if is_real else 5.0) * batch * points * math.log2(points)
    return rule


def reduce(eq: Equation) -> OpRule:
    """`lax.reduce` with a function of one's own; reduced dims must be whole.

    Partial results of such a function have no all-reduce on most backends.
    """
    reduced = {int(dim) for dim in eq.params["dimensions"]}
    arrays = eq.ins[: len(eq.ins) // 2]
    rule = OpRule()
    dims: list[int | None] = [
        rule.add(n, blocked=i in reduced) for i, n in enumerate(arrays[0].shape)
    ]
    rule.operands = [list(dims) for _ in arrays] + [[] for _ in arrays]
    kept = [factor for i, factor in enumerate(dims) if i not in reduced]
    rule.results = [list(kept) for _ in eq.outs]
    return rule


SORTS: dict[str, Rule] = {
    "sort": _mixing(lambda eq: int(eq.params["dimension"])),
    "top_k": _mixing(lambda eq: int(eq.params.get("axis", -1))),
    "approx_top_k": _mixing(lambda eq: int(eq.params["reduction_dimension"])),
}
CUMULATIVE: dict[str, Rule] = dict.fromkeys(
    "cumsum cumprod cummax cummin cumlogsumexp".split(),
    _mixing(lambda eq: int(eq.params["axis"])),
)
TRANSFORMS: dict[str, Rule] = {"fft": fft}
FOLDS: dict[str, Rule] = {"reduce": reduce}
