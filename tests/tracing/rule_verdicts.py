"""Is our rule Shardy's, and if not, why?

`judge` gives every case one of three outcomes: `same`, `different` with reasons of the
list `REASONS`.
A difference that no reason covers is `unexplained`, which the tests refuse.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lts.shardy import Shardy
from tests.tracing.numeric_cases import SERIES
from tests.tracing.primitive_cases import TracedCase
from tests.tracing.rule_forms import (
    Difference,
    Form,
    differences,
    our_form,
    shardy_form,
)

SCALAR_BYTES = 8
"""A collective of no more is the test of a loop, not data."""

Applies = Callable[[TracedCase, Difference, Form], bool]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why rules differ, in a sentence, and on which differences that is so."""

    name: str
    text: str
    applies: Applies


def _is_minor(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    minor = {place for link in theirs.minor for place in link}
    return not found.looser and found.ours == "whole" and minor >= set(found.places)


def _exchanges(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    by_rule = found.theirs == "exchange"
    propagated = theirs.how == "propagation" and theirs.has_exchange
    return not found.looser and found.ours == "whole" and (by_rule or propagated)


def _whole_in(*primitives: str) -> Applies:
    """Whether ours keeps a dim of one of these whole that Shardy does not."""

    def applies(traced: TracedCase, found: Difference, theirs: Form) -> bool:
        return traced.case.primitive in primitives and found.ours == "whole"

    return applies


def _is_loop_test(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    moved = [theirs.moved_bytes.get(place, 0) for place in found.places]
    kinds = found.ours, found.theirs
    iterates = traced.case.primitive in {*SERIES, "svd", "random_gamma"}
    return iterates and kinds == ("pass", "reduction") and max(moved) <= SCALAR_BYTES


def _is_still(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    if traced.case.primitive != "conv_general_dilated":
        return False
    params, kernel = traced.equation.params, traced.equation.ins[1].shape
    taps = [kernel[dim] for dim in params["dimension_numbers"].rhs_spec[2:]]
    still = {*taps, *params["window_strides"]} == {1}
    return still and (found.ours, found.theirs) == ("pass", "exchange")


def _is_gathered_extreme(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    extreme = traced.case.primitive in {"argmax", "argmin"}
    return extreme and (found.ours, found.theirs) == ("reduction", "whole")


def _is_other_scatter(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    kinds = found.ours, found.theirs
    if traced.case.primitive == "scatter-sub":
        return kinds == ("reduction", "whole")
    compares = {"scatter-mul", "scatter-min", "scatter-max"}
    return traced.case.primitive in compares and kinds == ("whole", "reduction")


def _has_own_form(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    """Batch dims of `lu`, right-hand sides of `triangular_solve`."""
    rank = len(traced.equation.ins[0].shape)
    dims = [dim for _, dim in found.places]
    if traced.case.primitive == "lu":
        return found.looser and max(dims) < rank - 2
    if traced.case.primitive != "triangular_solve":
        return False
    free = rank - 1 if traced.equation.params["left_side"] else rank - 2
    solved = all(array > 0 for array, _ in found.places)
    return found.looser and solved and set(dims) == {free}


def _is_update(traced: TracedCase, found: Difference, theirs: Form) -> bool:
    return traced.case.primitive == "dynamic_update_slice" and found.looser


REASONS = (
    Reason(
        name="minor",
        text="the minor factors of a dim that is split or merged stay whole in ours: "
        "no sharding of the merged dim alone expresses them",
        applies=_is_minor,
    ),
    Reason(
        name="exchange",
        text="shards would exchange elements (Shardy's permutation factors: windows, "
        "slices, pads, reversals); ours keeps the dim whole",
        applies=_exchanges,
    ),
    Reason(
        name="scatter",
        text="updates that multiply or compare stay whole in ours, those that subtract "
        "are added up as those that add; in Shardy it is the other way round",
        applies=_is_other_scatter,
    ),
    Reason(
        name="groups",
        text="groups of the batch and taps of the kernel stay whole in ours; XLA "
        "gathers grouped convolutions",
        applies=_whole_in("conv_general_dilated"),
    ),
    Reason(
        name="combiner",
        text="a reduction with a combiner of its own keeps its dims whole in ours: XLA "
        "has no all-reduce for it and gathers",
        applies=_whole_in("reduce"),
    ),
    Reason(
        name="matrix",
        text="linear algebra works on whole matrices in ours; Shardy's rule of eigh "
        "passes their dims, which XLA gathers, and splits the sums and loops that a "
        "symmetric product and a list of pivots become",
        applies=_whole_in("eigh", "symmetric_product", "lu_pivots_to_permutation"),
    ),
    Reason(
        name="no all-reduce",
        text="XLA has no all-reduce for exclusive or: ours keeps the dim whole",
        applies=_whole_in("reduce_xor"),
    ),
    Reason(
        name="key",
        text="the words of a random key are one element in jax, a dim in StableHLO",
        applies=_whole_in("random_wrap", "random_unwrap"),
    ),
    Reason(
        name="loop test",
        text="an iteration ends when all elements have converged: an all-reduce of one "
        "byte per step, which ours leaves out",
        applies=_is_loop_test,
    ),
    Reason(
        name="still window",
        text="one tap that moves by one: Shardy marks every spatial dim as exchanged, "
        "XLA exchanges nothing",
        applies=_is_still,
    ),
    Reason(
        name="update",
        text="positions are written by the devices that hold them, several under "
        "shard_map: Shardy marks the dim as exchanged",
        applies=_is_update,
    ),
    Reason(
        name="places of extremes",
        text="newer Shardy gathers the operand of argmax and argmin, XLA gathers one "
        "extreme and one place per shard, and so ours is priced",
        applies=_is_gathered_extreme,
    ),
    Reason(
        name="own form",
        text="a plan runs this op under shard_map on each device's part, where Shardy "
        "and XLA would gather",
        applies=_has_own_form,
    ),
)
"""In this order; the first that applies is the reason of a difference."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of one case.

    Attributes:
      outcome: same, different, unexplained; or "no rule of ours".
      how: whether Shardy's rule was read, or its propagation watched.
      reasons: names of `REASONS`, without repetition.
      details: the differences, as text.
    """

    primitive: str
    name: str
    shapes: str
    outcome: str
    how: str = ""
    reasons: tuple[str, ...] = ()
    details: str = ""


def judge(shardy: Shardy, traced: TracedCase) -> Verdict:
    """Compare our rule of a case with Shardy's."""
    case, shapes = traced.case, traced.shapes
    ours = our_form(traced)
    if ours is None:
        return Verdict(
            primitive=case.primitive,
            name=case.name,
            shapes=shapes,
            outcome="no rule of ours",
        )
    theirs = shardy_form(shardy, traced)
    found = differences(ours, theirs)
    reasons = [_reason(traced, difference, theirs) for difference in found]
    if None in reasons:
        outcome = "unexplained"
    else:
        outcome = "different" if found else "same"
    return Verdict(
        primitive=case.primitive,
        name=case.name,
        shapes=shapes,
        outcome=outcome,
        how=theirs.how,
        reasons=tuple(dict.fromkeys(r.name for r in reasons if r is not None)),
        details="; ".join(map(str, found)),
    )


def _reason(traced: TracedCase, found: Difference, theirs: Form) -> Reason | None:
    fitting = (reason for reason in REASONS if reason.applies(traced, found, theirs))
    return next(fitting, None)
