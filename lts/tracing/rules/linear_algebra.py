"""Rules of matrix factorisations and solvers: batch dims pass through.

The dims of a matrix must be whole: no backend splits one factorisation over devices.
Arithmetic is the leading term for real numbers, from LAPACK Working Note 41 (LU, QR,
Cholesky, triangular and reflector products, reductions to condensed form) and from
Golub and Van Loan, Matrix Computations, section 8.6.3 (singular values) and 7.5.6
(Schur form); eigenvalue solvers iterate, so theirs are typical, not exact.
"""

import math
from collections.abc import Callable

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule, leading


def _matrices(flops: Callable[[Equation, int, int], float]) -> Rule:
    """Rule of a function of a batch of matrices; `flops` of one of `(rows, columns)`.

    The first operand is the matrices; all before its last two dims is batch.
    """

    def rule_of(eq: Equation) -> OpRule:
        *batch, rows, columns = eq.ins[0].shape
        rule = leading(eq, len(batch))
        rule.flops = float(math.prod(batch) * flops(eq, rows, columns))
        return rule

    return rule_of


def _lu(eq: Equation, m: int, n: int) -> float:
    long, short = max(m, n), min(m, n)
    return long * short**2 - short**3 / 3


def _geqrf(eq: Equation, m: int, n: int) -> float:
    return 2 * _lu(eq, m, n)


def _reflectors(m: int, n: int, k: int) -> float:
    """Forming `m` by `n` columns of a product of k reflectors."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


def _qr(eq: Equation, m: int, n: int) -> float:
    columns = eq.outs[0].shape[-1]
    return _geqrf(eq, m, n) + _reflectors(m, columns, min(m, n))


def _apply_reflectors(eq: Equation, m: int, n: int) -> float:
    rows, columns = eq.ins[2].shape[-2:]
    k = eq.ins[1].shape[-1]
    along, across = (rows, columns) if eq.params["left"] else (columns, rows)
    return 4 * along * across * k - 2 * across * k**2


def _svd(eq: Equation, m: int, n: int) -> float:
    m, n = max(m, n), min(m, n)
    if eq.params["compute_uv"]:
        return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3
    return 4 * m * n**2 - 4 * n**3 / 3


def _eig(eq: Equation, m: int, n: int) -> float:
    return 25.0 * n**3 if len(eq.outs) > 1 else 10.0 * n**3


def triangular_solve(eq: Equation) -> OpRule:
    """`a x = b` or `x a = b`: the free dim of b passes through, as batch dims do."""
    *batch, size, _ = eq.ins[0].shape
    rule = leading(eq, len(batch))
    rank = len(eq.ins[1].shape)
    free = rank - 1 if eq.params["left_side"] else rank - 2
    count = eq.ins[1].shape[free]
    factor = rule.add(count)
    rule.operands[1][free] = rule.results[0][free] = factor
    rule.flops = float(math.prod(batch) * size**2 * count)
    return rule


def tridiagonal_solve(eq: Equation) -> OpRule:
    """Three diagonals and right-hand sides `[..., size, columns]`: columns are free."""
    *batch, size = eq.ins[0].shape
    rule = leading(eq, len(batch))
    count = eq.ins[3].shape[-1]
    rule.operands[3][-1] = rule.results[0][-1] = rule.add(count)
    rule.flops = 8.0 * math.prod(batch) * size * count  # Gaussian elimination
    return rule


def permutation(eq: Equation) -> OpRule:
    """`lu_pivots_to_permutation`: pivots of a batch of matrices."""
    return leading(eq, len(eq.ins[0].shape) - 1)


LINEAR_ALGEBRA: dict[str, Rule] = {
    "cholesky": _matrices(lambda eq, m, n: n**3 / 3),
    "cholesky_update": _matrices(lambda eq, m, n: 4.0 * n**2),  # n rotations of rows
    "eig": _matrices(_eig),
    "eigh": _matrices(lambda eq, m, n: 9.0 * n**3),
    "geqp3": _matrices(_geqrf),
    "geqrf": _matrices(_geqrf),
    "hessenberg": _matrices(lambda eq, m, n: 10 * n**3 / 3),
    "householder_product": _matrices(
        lambda eq, m, n: _reflectors(m, n, eq.ins[1].shape[-1])
    ),
    "lu": _matrices(_lu),
    "lu_pivots_to_permutation": permutation,
    "ormqr": _matrices(_apply_reflectors),
    "qr": _matrices(_qr),
    "schur": _matrices(lambda eq, m, n: 25.0 * n**3),
    "svd": _matrices(_svd),
    "symmetric_product": _matrices(lambda eq, m, n: float(m * m * n)),
    "triangular_solve": triangular_solve,
    "tridiagonal": _matrices(lambda eq, m, n: 4 * n**3 / 3),
    "tridiagonal_solve": tridiagonal_solve,
}
