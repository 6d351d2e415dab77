"""Random legal plans of a random program, applied on 8 CPU devices and compared.

`judged` does it all and says how it went; the rest are its parts.
"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lts
from lts.applied import AppliedStep, auto_mesh
from lts.assignment import Assignment
from lts.cost.breakdown import breakdown
from lts.graph import OpGraph
from lts.prepare import Prepared, prepare_function
from lts.problem import STEP
from lts.space import Space
from lts.specs import without_unit_axes
from lts.tracing.flatten import inner_jaxprs, open_jaxpr
from lts.tracing.labels import dim_names
from tests.random_programs import Program

CLUSTER = lts.Cluster.parse("h100:1x8")
TOLERANCE = 1e-3
"""Of a result's largest element: float32 sums in another order, through 30 ops."""


class Mismatch(AssertionError):
    """A plan of a program breaks a property; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a program went.

    Attributes:
      outcome: "right", "nothing" (no array to shard), "named" (lts refused to trace it
        by an error of its own), "wrong" (a `Mismatch`) or "crash" (any other error).
      message: type and head of the error.
      plans: how many were applied and right.
    """

    outcome: str
    message: str = ""
    plans: int = 0

    @property
    def head(self) -> str:
        """The message without the numbers and names of one program."""
        return re.sub(r"%\S+|\d[\d.e+-]*", "", self.message)[:60]


def judged(program: Program, seed: int, plans: int = 2) -> Verdict:
    """Trace a program, draw plans, apply and compare them.

    Args:
      seed: of its inputs and plans.

    Raises:
      Exception: whatever the program itself raises on one device.
    """
    expected = expected_results(program, seed)
    number = 0
    try:
        prepared = prepared_program(program)
    except Exception as error:
        outcome = "named" if _is_named(error) else "crash"
        return Verdict(outcome=outcome, message=_message(error))
    if prepared is None:
        return Verdict(outcome="nothing")
    try:
        for graph in prepared.graphs.values():
            check_graph(graph)
        for number in range(plans):
            picks = random_picks(prepared.space, np.random.default_rng((seed, number)))
            check_plan(program, prepared, picks, expected, seed)
    except Exception as error:
        outcome = "wrong" if isinstance(error, Mismatch) else "crash"
        return Verdict(outcome=outcome, message=_message(error), plans=number)
    return Verdict(outcome="right", plans=plans)


def _is_named(error: Exception) -> bool:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    is_own = Path(lts.__file__).parent in Path(frame.filename).parents
    return is_own and isinstance(error, (ValueError, lts.UnsupportedOpError))


def _message(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def primitives(program: Program) -> Counter[str]:
    """How often every primitive stands in a program, inner jaxprs included."""
    closed = jax.make_jaxpr(program.function)(*program.abstract)
    return Counter(_primitives(closed))


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in open_jaxpr(jaxpr).eqns:
        yield equation.primitive.name
        for _, inner in inner_jaxprs(equation):
            yield from _primitives(inner)


def random_picks(space: Space, rng: np.random.Generator) -> np.ndarray:
    """A candidate: roles at random, and all, some or no overrides; `[genes]`."""
    picks = rng.integers(space.cardinalities)
    inherits = rng.random(space.num_genes) < rng.choice([0.3, 0.9, 1.0])
    inherits[: space.first_override] = False
    return np.where(inherits, 0, picks).astype(np.int32)


def prepared_program(program: Program) -> Prepared | None:
    """Traced and priced; None if there is no array to shard."""
    try:
        return prepare_function(program.function, program.abstract, {}, CLUSTER)
    except ValueError as error:
        if "no array to shard" in str(error):
            return None
        raise


def expected_results(program: Program, seed: int) -> list[np.ndarray]:
    """Of the program as it is, on one device."""
    return list(map(np.asarray, jax.jit(program.function)(*program.filled(seed))))


def check_plan(
    program: Program,
    prepared: Prepared,
    picks: np.ndarray,
    expected: Sequence[np.ndarray],
    seed: int,
) -> None:
    """Hold a candidate to what every plan must keep.

    Raises:
      Mismatch: if prices or arithmetic are no finite amounts, results are not those of
        one device, or arrays do not lie as planned.
    """
    _check_price(prepared, picks)
    assignment = without_unit_axes(prepared.space.decode(picks))
    axes = assignment.degrees.axes
    step = AppliedStep(
        function=program.function,
        assignment=assignment,
        phase=STEP,
        dims=dim_names(prepared.graphs),
        mesh=auto_mesh(jax.devices()[:8], {axis.name: axis.size for axis in axes}),
    )
    args = program.filled(seed)
    found = step.prepared(args, {})
    placed = step.device_put(*args)
    results = step(*placed)
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        _check_close(f"result {number}", np.asarray(a), b)
    ends = (placed, found.specs.arguments), (results, found.specs.results)
    for what, (arrays, specs) in zip(("argument", "result"), ends, strict=True):
        for number, (array, spec) in enumerate(zip(arrays, specs, strict=True)):
            wanted = jax.sharding.NamedSharding(step.mesh, spec)
            if not array.sharding.is_equivalent_to(wanted, array.ndim):
                raise Mismatch(f"{what} {number}: {array.sharding} is not {spec}")
    _check_leaves(prepared, assignment, found.specs, found.traced)


def _check_leaves(
    prepared: Prepared, assignment: Assignment, specs: Any, traced: Any
) -> None:
    """Arguments and results lie as the states of their nodes say."""
    axes = assignment.degrees.axes
    lies = dict(zip(traced.in_paths, specs.arguments, strict=True))
    lies |= dict(zip(traced.out_paths, specs.results, strict=True))
    for node in prepared.graphs[STEP].values:
        states = assignment.states[STEP].get(node.name, (None,) * len(axes))
        for leaf in node.leaves:
            spec = lies.get(leaf.path)
            if spec is None:
                continue
            planned = [
                tuple(
                    axis.name
                    for axis, state in zip(axes, states, strict=True)
                    if factor is not None and state == node.factors[factor].name
                )
                for factor in leaf.factors
            ]
            entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
            entries += [()] * (len(planned) - len(entries))
            if entries != planned:
                raise Mismatch(f"{leaf.path}: {spec} is not {planned}")


def _check_price(prepared: Prepared, picks: np.ndarray) -> None:
    parts = breakdown(prepared.evaluator.tables, picks, {STEP: 0})
    times = [part.time_s for part in parts]
    if not all(math.isfinite(t) and t >= 0 for t in times):
        raise Mismatch(f"price: parts {times}")


def check_graph(graph: OpGraph) -> None:
    """Arithmetic and bytes of a graph are finite amounts.

    Raises:
      Mismatch: else.
    """
    for name in ("flops", "compulsory_bytes"):
        value = getattr(graph, name)
        if not (math.isfinite(value) and value >= 0):
            raise Mismatch(f"{name} is {value}")


def _check_close(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise Mismatch(f"{name}: {found.dtype}{found.shape} is not {expected.dtype}")
    if not jnp.issubdtype(expected.dtype, jnp.floating):
        if not np.array_equal(found, expected):
            places = int((found != expected).sum())
            raise Mismatch(f"{name}: {places} of {found.size} elements differ")
        return
    same = np.isfinite(found) == np.isfinite(expected)
    gap = np.abs(found - expected)[np.isfinite(found) & same]
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    worst = gap.max(initial=0.0)
    if not same.all() or worst > TOLERANCE * largest + 1e-5:
        wrong = float((gap > TOLERANCE * largest + 1e-5).mean()) if gap.size else 1.0
        raise Mismatch(
            f"{name}: off by {worst:.3g} of {largest:.3g}, {wrong:.0%} of it"
        )
