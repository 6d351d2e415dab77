"""Rules of the two forms in which programs write mixtures of experts."""

import math

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule


def expert_ffn(eq: Equation) -> OpRule:
    """A mixture of experts: tokens pass through, experts and their hidden are sums.

    An axis may also shard tokens and experts together: each token then travels to the
    devices that hold its experts, and back. Operands as `lts.models.experts` has them.
    """
    x, weight = eq.ins[0].shape, eq.ins[1].shape
    scaled = len(eq.ins) in (7, 9)
    matrices = eq.ins[3 :: 2 if scaled else 1]
    experts, _, hidden = matrices[0].shape
    rule = OpRule()
    tokens: list[int | None] = [rule.add(n) for n in x[:-1]]
    e, f = rule.add(experts), rule.add(hidden)
    d, k = rule.add(x[-1], blocked=True), rule.add(weight[-1], blocked=True)
    rule.operands = [[*tokens, d], [*tokens, k], [*tokens, k]]
    for number in range(len(matrices)):
        is_last = number == len(matrices) - 1  # which leads back
        dims: list[int | None] = [e, f, d] if is_last else [e, d, f]
        if scaled:
            rule.ties.append((len(rule.operands), len(rule.operands) + 1))
            rule.operands.append(list(dims))
        rule.operands.append(list(dims))
    rule.results = [[*tokens, d]]
    rule.pairs = [(token, e) for token in tokens if token is not None]
    pairs = math.prod(weight)
    rule.flops = 2.0 * len(matrices) * pairs * x[-1] * hidden
    return rule


def ragged_dot(eq: Equation) -> OpRule:
    """Products of runs of rows, each with its group's matrix (`lax.ragged_dot`).

    Rows and columns pass through. Groups (experts) must be whole: no backend of XLA
    splits them, sharded experts are gathered on every device in every step, so that
    sharding them is no expert parallelism. `lts.expert_ffn` is. Where a contracted or a
    batch dim is the one in runs (gradients of the above), it must be whole, as well;
    one product per run of a contracted dim stands first in the result.
    """
    numbers = eq.params["ragged_dot_dimension_numbers"]
    (contract_l, contract_r), (batch_l, batch_r) = numbers.dot_dimension_numbers
    (ragged, *_), groups = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    lhs, rhs, sizes = (tensor.shape for tensor in eq.ins[:3])
    rule = OpRule()
    left: list[int | None] = [None] * len(lhs)
    right: list[int | None] = [None] * len(rhs)
    for dim in groups:
        right[dim] = rule.add(rhs[dim], blocked=True)
    for pairs in ((batch_l, batch_r), (contract_l, contract_r)):
        for i, j in zip(*pairs, strict=True):
            left[i] = right[j] = rule.add(lhs[i], blocked=i == ragged)
    for dims, shape in ((left, lhs), (right, rhs)):
        for i, factor in enumerate(dims):
            if factor is None:
                dims[i] = rule.add(shape[i])
    out = [left[i] for i in batch_l]
    out += [f for i, f in enumerate(left) if i not in (*contract_l, *batch_l)]
    out += [f for j, f in enumerate(right) if j not in (*contract_r, *batch_r, *groups)]
    counts = [n for i, n in enumerate(rule.sizes) if i in {*left, *out}]
    rule.flops = 2.0 * math.prod(counts)
    if ragged in contract_l:
        out.insert(0, rule.add(eq.outs[0].shape[0], blocked=True))
    rule.operands, rule.results = [left, right, rule.whole(sizes)], [out]
    rule.note = (
        f"ragged_dot at {eq.source}: XLA splits no groups over devices, experts are "
        "gathered where they are sharded; lts.expert_ffn sends tokens to them instead"
    )
    return rule
