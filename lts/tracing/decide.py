"""Which rule a decision op has: an operation whose sharding is a choice of its own.

A rule gives every dim of operands and results a factor, as in Shardy: `(b, m, k),
(b, k, n) -> (b, m, n)`. A factor that no result has is a reduction; a blocked factor
must stay whole. `lts.tracing.rules` has one rule per primitive; users add theirs with
`register_rule`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lts.tracing.flatten import Equation
from lts.tracing.notation import rule_from_notation
from lts.tracing.op_rule import Rule
from lts.tracing.rules import BUILT_IN, CALLS
from lts.tracing.rules.opaque import name_of

__all__ = [
    "CALLS",
    "DECIDE",
    "LOCAL",
    "UnsupportedOpError",
    "keys_of",
    "register_rule",
    "rule_for",
    "rule_from_notation",
    "unsupported",
]

DECIDE: dict[str, Rule] = dict(BUILT_IN)
"""Rules by primitive, or by `primitive:name`; those that users register included."""

LOCAL: dict[str, Callable[..., Any]] = {}
"""Functions of local arrays that stand for an op in an applied plan, by key."""


class UnsupportedOpError(NotImplementedError):
    """A primitive has no sharding rule; the message says how to register one."""


def keys_of(primitive: str, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys under which an equation may have a rule, the closest first."""
    name = name_of(primitive, params)
    return (f"{primitive}:{name}", primitive) if name else (primitive,)


def rule_for(eq: Equation) -> Rule | None:
    """The rule of a decision op; None for a primitive that follows or has no rule."""
    keys = keys_of(eq.primitive, eq.params)
    return next((DECIDE[key] for key in keys if key in DECIDE), None)


def register_rule(
    primitive: str, notation: str, *, local: Callable[..., Any] | None = None
) -> None:
    """Give a primitive a sharding rule, for all later traces of this process.

    Args:
      primitive: name as it stands in the jaxpr; `pallas_call:name` for the kernel of
        that name, `ffi_call:target` for one foreign target.
      notation: which dims are the same index. `(i, k), (k, j) -> (i, j)`, one bracket
        per operand and result; or as Shardy prints a rule, `([i, k], [k, j])->([i, j])
        reduction={k}`; or as jax's `custom_partitioning` takes it, `i k, k j -> i j`.
        `!k` must stay whole. A factor absent from the results is a sum, but in
        Shardy's form, where `reduction={...}` lists the sums.
      local: what to run on each device's part of the arrays, a function of local
        arrays (sums over a split factor are added up after it). A `pallas_call` needs
        one: its grid is made for whole arrays. Without it the compiler partitions the
        op, and an `ffi_call` is called with the local shapes of its results.

    Example::

        lts.register_rule("ffi_call:scale_rows", "(i, !j), (i) -> (i, !j)")

    Raises:
      ValueError: if the notation cannot be read, or if a `pallas_call` lacks `local`.
    """
    rule = rule_from_notation(notation)
    if primitive.partition(":")[0] == "pallas_call" and local is None:
        raise ValueError(
            f"a rule for {primitive!r} needs local=: the kernel's grid is made for "
            "whole arrays. Pass the function that calls the kernel on a part of them, "
            "or wrap the call in jax.shard_map"
        )
    DECIDE[primitive] = rule
    LOCAL.pop(primitive, None)
    if local is not None:
        LOCAL[primitive] = local


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
