"""Rules of contractions: products that sum over an index."""

import math

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule


def dot_general(eq: Equation) -> OpRule:
    """A batched matrix product; contracted dims are reductions."""
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


def _with_scales(rule: OpRule, eq: Equation) -> OpRule:
    """Scales of blocks: a dim that has as many of them as elements is the same index.

    Along a dim with fewer (one scale for every 32 values) scales follow in units of
    their own number.
    """
    values = rule.operands[:2]
    for tensor, scales, dims in zip(eq.ins[:2], eq.ins[2:], values, strict=False):
        laid: list[int | None] = []
        for extent, count, factor in zip(tensor.shape, scales.shape, dims, strict=True):
            if factor is not None and 1 < count < extent:
                # both then split into as many parts as there are blocks
                rule.sizes[factor] = math.gcd(rule.sizes[factor], count)
            laid.append(factor if count > 1 else rule.add(1, blocked=True))
        rule.operands.append(laid)
    return rule


def scaled_dot(eq: Equation) -> OpRule:
    """A product of block-scaled operands with dimension numbers (`lax.scaled_dot`)."""
    return _with_scales(dot_general(eq), eq)


def scaled_matmul(eq: Equation) -> OpRule:
    """`jax.nn.scaled_matmul`: `(b, m, k), (b, n, k) -> (b, m, n)` and their scales.

    Whole but for the batch, for rows and for columns: its lowering is a custom call,
    which partitions by a rule of its own on some backends and none on others, and the
    contracted dim is summed in blocks.
    """
    (batch, rows, inner), columns = eq.ins[0].shape, eq.ins[1].shape[1]
    rule = OpRule()
    b, m, n = rule.add(batch), rule.add(rows), rule.add(columns)
    rule.operands = [[b, m, rule.add(inner, blocked=True)]]
    rule.operands.append([b, n, rule.operands[0][2]])
    for scales, dim in zip(eq.ins[2:], (m, n), strict=False):
        rule.operands.append([b, dim, rule.add(scales.shape[2], blocked=True)])
    rule.results = [[b, m, n]]
    rule.flops = 2.0 * batch * rows * columns * inner
    return rule


CONTRACTIONS: dict[str, Rule] = {
    "dot_general": dot_general,
    "scaled_dot": scaled_dot,
    "scaled_matmul_wrapper": scaled_matmul,
}
