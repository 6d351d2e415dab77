"""Does XLA move what our rules call free?

`xla_findings` compiles a case, as a plan would run it, with each class of dims that our
rule lets be sharded, and reads the collectives after SPMD partitioning.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lts.hlo import list_collectives
from lts.local_ops import ROWS, GroupsForm, RowsForm
from lts.local_scatters import IndexedForm
from lts.local_updates import update_form
from lts.tracing.rules import CONVOLUTIONS, SCATTERS
from tests.after_spmd import compiled_with_dump
from tests.tracing.primitive_cases import TracedCase
from tests.tracing.rule_forms import Place, extents_of, our_form, prime_factor
from tests.tracing.rule_verdicts import SCALAR_BYTES

BROKEN_CLAIMS = {
    "mulhi": "XLA compiles it on one device only, split or whole",
    "reduce_xor": "XLA has no all-reduce for it: an error on CPU, a crash for H100s",
}
"""Why XLA does not keep what our rule claims, by primitive."""

SUMS = {
    "": ("all_reduce", "reduce_scatter"),
    "argmax": ("all_gather",),
    "argmin": ("all_gather",),
}
"""What a reduction may move, by primitive: extremes are gathered with their places."""


@dataclass(frozen=True, kw_only=True)
class XlaFinding:
    """What XLA moves when one class of dims is sharded.

    Attributes:
      places: the dims that are sharded, as text.
      claim: `pass` or `reduction`, in our rule.
      collectives: kinds and bytes, as text.
      holds: whether nothing moves for `pass`, and nothing but `SUMS` for `reduction`.
      why: what is known of a claim that does not hold.
    """

    primitive: str
    name: str
    shapes: str
    places: str
    claim: str
    collectives: str
    holds: bool
    why: str = ""


def xla_findings(traced: TracedCase) -> Iterator[XlaFinding]:
    """Compile a case once per class of dims that our rule lets be sharded.

    Needs 8 devices.
    """
    form, extents = our_form(traced), extents_of(traced)
    if form is None or any(extent == 0 for extent in extents.values()):
        return
    seen = set[Place]()
    for place in sorted(extents):
        claim = form.kinds.get(place, "whole")
        if place[0] >= len(traced.arguments) or place in seen or claim == "whole":
            continue
        same = {place}.union(*(link for link in form.links if place in link))
        seen |= same
        ways = math.gcd(*(form.ways.get(p, extents[p]) for p in same))
        try:
            collectives = _compiled(traced, same, prime_factor(ways))
        except jax.errors.JaxRuntimeError as error:
            collectives = [(f"not compiled: {str(error).splitlines()[0]}", math.inf)]
        sums = SUMS.get(traced.case.primitive, SUMS[""]) if claim == "reduction" else ()
        holds = all(
            kind in sums or nbytes <= SCALAR_BYTES for kind, nbytes in collectives
        )
        yield XlaFinding(
            primitive=traced.case.primitive,
            name=traced.case.name,
            shapes=traced.shapes,
            places=place_text(sorted(same), len(traced.arguments)),
            claim=claim,
            collectives="; ".join(map(_text, collectives)),
            holds=holds,
            why="" if holds else BROKEN_CLAIMS.get(traced.case.primitive, "not known"),
        )


def _text(collective: tuple[str, float]) -> str:
    kind, nbytes = collective
    return kind if math.isinf(nbytes) else f"{kind} {nbytes:.0f} B"


def place_text(places: list[Place], num_ins: int) -> str:
    """`in 0 dim 1 = out 0 dim 0`."""
    return " = ".join(
        f"{'in' if array < num_ins else 'out'} "
        f"{array if array < num_ins else array - num_ins} dim {dim}"
        for array, dim in places
    )


def _compiled(
    traced: TracedCase, sharded: set[Place], num_devices: int
) -> list[tuple[str, float]]:
    """Collectives of a case with some dims sharded, the others whole."""
    # An axis that shards nothing makes XLA gather what it partitions well without.
    idle = 2 if 2 * num_devices <= len(jax.devices()) else 1
    devices = np.array(jax.devices()[: num_devices * idle]).reshape(num_devices, idle)
    mesh = Mesh(devices, ("x", "idle"), axis_types=(AxisType.Auto,) * 2)
    outs = [tensor.shape for tensor in traced.equation.outs]
    specs = [
        PartitionSpec(
            *("x" if (array, dim) in sharded else None for dim in range(len(shape)))
        )
        for array, shape in enumerate([*(arg.shape for arg in traced.args), *outs])
    ]
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    results = shardings[len(traced.args) :]
    several = isinstance(jax.eval_shape(traced.function, *traced.args), list)
    jitted = jax.jit(
        _as_applied(traced, mesh, specs),
        in_shardings=tuple(shardings[: len(traced.args)]),
        out_shardings=results if several else results[0],
        keep_unused=True,
    )
    _, text = compiled_with_dump(jitted.lower(*traced.args))
    return [(c.kind, c.nbytes) for c in list_collectives(text, mesh.shape)]


def _as_applied(
    traced: TracedCase, mesh: Mesh, specs: list[PartitionSpec]
) -> Callable[..., Any]:
    """The case as a plan runs it: some ops have a form of their own."""
    count = len(traced.args)
    rows = RowsForm(
        operands=tuple(specs[:count]),
        results=tuple(specs[count:]),
        axes=frozenset({"x"}),
    )
    form = None
    if traced.case.primitive == "dynamic_update_slice":
        array, new = (arg.shape for arg in traced.args[:2])
        form = update_form(array, new, *specs[:2])
    elif traced.case.primitive in SCATTERS:
        sums = () if any(specs[0]) else ("x",)
        form = IndexedForm(operands=tuple(specs[:3]), sums=sums)
    elif traced.case.primitive in ROWS:
        form = rows
    elif traced.case.primitive in CONVOLUTIONS:
        form = GroupsForm(rows=rows)
    if form is None:
        return traced.function
    params = traced.bound.params
    return lambda *operands: form(mesh, traced.bound, operands, params)
