"""Ops that run as `shard_map` in an applied plan, so that no partitioner guesses.

A mixture of experts becomes its expert-parallel form, with exchanges of its own. A
`top_k` runs on each device's rows: left to XLA its operand is gathered wherever another
mesh axis is idle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from lts.graph import EXPERTS, Node, coverage
from lts.layout import spec_of
from lts.mesh import MeshAxis
from lts.models.dispatch import ExpertLayout, sharded_expert_ffn
from lts.models.experts import arguments

AnyMesh = Mesh | AbstractMesh
Form = Callable[[AnyMesh, Any, Sequence[Any], Mapping[str, Any]], Any]
"""From mesh, equation, operands and parameters to the equation's results."""


@dataclass(frozen=True, kw_only=True)
class ExpertForm:
    """`expert_ffn` with tokens, experts and their hidden index split over a mesh."""

    layout: ExpertLayout
    scatter: tuple[tuple[str, int], ...] = ()

    def __call__(self, mesh: AnyMesh, equation: Any, operands, params) -> list[Any]:
        """The result, its token dims split as the operands' are."""
        split = dict(self.scatter)
        found = arguments(operands)
        return [sharded_expert_ffn(mesh, self.layout, *found, scatter=split)]


@dataclass(frozen=True, kw_only=True)
class RowsForm:
    """An op whose sharded dims all pass through it, on each device's part."""

    operands: tuple[PartitionSpec, ...]
    results: tuple[PartitionSpec, ...]
    axes: frozenset[str]

    def __call__(self, mesh: AnyMesh, equation: Any, operands, params) -> list[Any]:
        """The results, split as the operands are."""

        def run(*local: jax.Array) -> list[jax.Array]:
            return equation.primitive.bind(*local, **params)

        return jax.shard_map(
            run,
            mesh=mesh,
            in_specs=self.operands,
            out_specs=list(self.results),
            axis_names=set(self.axes),
            check_vma=False,
        )(*operands)


def local_form(
    node: Node,
    numbers: np.ndarray,
    value_factors: Sequence[int | None],
    value_numbers: np.ndarray,
    axes: Sequence[MeshAxis],
) -> Form | None:
    """The local form of an op, None if it has none or needs none.

    Args:
      numbers: states of the op, `[axes]`.
      value_factors: per dim of its first result, the factor of the value it belongs to.
      value_numbers: states of that value.
    """
    if not any(
        number and axis.size > 1 for number, axis in zip(numbers, axes, strict=True)
    ):
        return None
    if node.primitive == EXPERTS:
        scatter = scattered(node, numbers, value_factors, value_numbers, axes)
        return ExpertForm(
            layout=expert_layout(node, numbers, axes),
            scatter=tuple((axes[i].name, dim) for i, dim in scatter.items()),
        )
    if node.primitive == "top_k":
        used = [a.name for a, n in zip(axes, numbers, strict=True) if n and a.size > 1]
        return RowsForm(
            operands=tuple(spec_of(o.factors, numbers, axes) for o in node.operands),
            results=tuple(spec_of(r.factors, numbers, axes) for r in node.results),
            axes=frozenset(used),
        )
    return None


def expert_layout(
    node: Node, numbers: np.ndarray, axes: Sequence[MeshAxis]
) -> ExpertLayout:
    """Mesh axes of tokens, experts and hidden index of an `expert_ffn` node."""
    covered = coverage(node.factors)[numbers]  # [axes, factors]

    def axes_of(factor: int | None) -> tuple[str, ...]:
        return tuple(
            axis.name
            for axis, own in zip(axes, covered, strict=True)
            if factor is not None and own[factor] and axis.size > 1
        )

    x, *_ = node.operands
    down = node.operands[-2 if len(node.operands) > 6 else -1]
    return ExpertLayout(
        tokens=tuple(axes_of(factor) for factor in list(x.factors)[:-1]),
        experts=axes_of(down.factors[0]),
        hidden=axes_of(down.factors[1]),
    )


def scattered(
    node: Node,
    numbers: np.ndarray,
    value_factors: Sequence[int | None],
    value_numbers: np.ndarray,
    axes: Sequence[MeshAxis],
) -> dict[int, int]:
    """Axes over which an expert op's sum ends scattered, and over which dim.

    Those that shard a dim in the value's layout, inside all axes of tokens there: a
    scattered part lies inside the part that a device had.
    """
    covered = coverage(node.factors)[numbers]
    tokens = node.results[0].factors
    found: dict[int, int] = {}
    for i, (number, axis) in enumerate(zip(numbers, axes, strict=True)):
        if axis.size == 1 or not number or not node.factors[number - 1].reduction:
            continue
        for dim, factor in enumerate(value_factors):
            if factor is None or value_numbers[i] != factor + 1:
                continue
            own = tokens[dim]
            before = [] if own is None else np.flatnonzero(covered[:, own])
            if all(other < i for other in before):
                found[i] = dim
    return found
