"""Ops that run as `shard_map` in an applied plan, so that no partitioner guesses.

A mixture of experts becomes its expert-parallel form, with exchanges of its own. A
`top_k`, a Fourier transform or a matrix factorisation runs on each device's rows: left
to XLA its operand is gathered, always or wherever another mesh axis is idle. A kernel
or a foreign call runs as its author said with `lts.register_rule`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lts.graph import EXPERTS, Node, coverage
from lts.layout import op_ends, scatters_sums, spec_of
from lts.local_scatters import IndexedForm
from lts.mesh import MeshAxis
from lts.models.dispatch import ExpertLayout, sharded_expert_ffn
from lts.models.experts import arguments
from lts.tracing.decide import LOCAL, keys_of
from lts.tracing.rules import (
    CONVOLUTIONS,
    FOLDS,
    LINEAR_ALGEBRA,
    SCATTERS,
    SORTS,
    TRANSFORMS,
)

AnyMesh = Mesh | AbstractMesh
Form = Callable[[AnyMesh, Any, Sequence[Any], Mapping[str, Any]], Any]
"""From mesh, equation, operands and parameters to what its primitive returns."""

ROWS = frozenset({*TRANSFORMS, *LINEAR_ALGEBRA, *SORTS} - {"sort"})
"""Ops whose parameters hold no extent of a dim that passes through."""

KERNELS = frozenset({"pallas_call"})
"""Ops that no partitioner may touch, not even one that leaves their arrays whole."""

FOREIGN = frozenset({"ffi_call"})
"""Ops that run as they are on local arrays, but for the shapes of their results."""


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

    def __call__(self, mesh: AnyMesh, equation: Any, operands, params) -> Any:
        """The results, split as the operands are."""
        several = equation.primitive.multiple_results

        def run(*local: jax.Array) -> Any:
            if equation.primitive.name not in TRANSFORMS:
                return equation.primitive.bind(*local, **params)
            # XLA's transform for CPUs takes rows alone, and others may reach it.
            return _in_rows(equation.primitive.bind(*map(_in_rows, local), **params))

        return jax.shard_map(
            run,
            mesh=mesh,
            in_specs=self.operands,
            out_specs=list(self.results) if several else self.results[0],
            axis_names=set(self.axes),
            check_vma=False,
        )(*operands)


def _in_rows(array: jax.Array) -> jax.Array:
    """An array with its last dim innermost in memory."""
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))


@dataclass(frozen=True, kw_only=True)
class GroupsForm:
    """A convolution of groups of features, on each device's images and groups.

    XLA gathers images and features of such a convolution, unless every feature is a
    group. One without groups is left to it: it partitions these well.
    """

    rows: RowsForm

    def __call__(self, mesh: AnyMesh, equation: Any, operands, params) -> Any:
        """The result, its batch and features split as the operands' are."""
        if params["feature_group_count"] == 1:
            return equation.primitive.bind(*operands, **params)
        numbers = params["dimension_numbers"]
        features = operands[0].shape[numbers.lhs_spec[1]]
        split = NamedSharding(mesh, self.rows.operands[0])
        local = split.shard_shape(operands[0].shape)[numbers.lhs_spec[1]]
        count = params["feature_group_count"] * local // features
        return self.rows(
            mesh, equation, operands, {**params, "feature_group_count": count}
        )


@dataclass(frozen=True, kw_only=True)
class KernelForm:
    """An op that runs as its registered rule says, on each device's part.

    Attributes:
      operands, results: specs, as the rule's factors are split.
      sums: mesh axes over which results are added up.
    """

    operands: tuple[PartitionSpec, ...]
    results: tuple[PartitionSpec, ...]
    sums: tuple[str, ...]

    def __call__(self, mesh: AnyMesh, equation: Any, operands, params) -> Any:
        """The results, split as the rule says.

        Raises:
          ValueError: if the registered function returns arrays of other shapes.
        """
        primitive = equation.primitive
        keys = keys_of(primitive.name, params)
        function = next((LOCAL[key] for key in keys if key in LOCAL), None)
        if primitive.name == "ffi_call":
            params = {**params, "result_avals": self._local_results(mesh, equation)}
        bound = primitive.get_bind_params(params)
        if function is None and primitive.name not in KERNELS | FOREIGN:
            return primitive.bind(*operands, **bound)

        def run(*local: jax.Array) -> list[jax.Array]:
            if function is None:
                outs = primitive.bind(*local, **bound)
            else:
                outs = function(*local)
            outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
            self._check(mesh, equation, outs, keys[0])
            return [jax.lax.psum(out, self.sums) if self.sums else out for out in outs]

        outs = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=self.operands,
            out_specs=list(self.results),
            check_vma=False,
        )(*operands)
        return outs if primitive.multiple_results else outs[0]

    def _local_results(self, mesh: AnyMesh, equation: Any) -> tuple[Any, ...]:
        avals = [var.aval for var in equation.outvars]
        specs = zip(avals, self.results, strict=True)
        return tuple(
            aval.update(shape=NamedSharding(mesh, spec).shard_shape(aval.shape))
            for aval, spec in specs
        )

    def _check(self, mesh: AnyMesh, equation: Any, outs: Any, key: str) -> None:
        found = [tuple(out.shape) for out in outs]
        wanted = [tuple(aval.shape) for aval in self._local_results(mesh, equation)]
        if found != wanted:
            raise ValueError(
                f"local= of {key!r} returned arrays of shapes {found} for a device's "
                f"part; its rule says {wanted}. Make both agree with "
                "lts.register_rule"
            )


def _has_own_form(primitive: str) -> bool:
    """Whether an op may run as its author said."""
    registered = {key.partition(":")[0] for key in LOCAL}
    return primitive in registered | KERNELS | FOREIGN


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
    used = [a.name for a, n in zip(axes, numbers, strict=True) if n and a.size > 1]
    if not used and node.primitive not in {*KERNELS, *TRANSFORMS}:
        return None
    if node.primitive == EXPERTS:
        scatter = scattered(node, numbers, value_factors, value_numbers, axes)
        return ExpertForm(
            layout=expert_layout(node, numbers, axes),
            scatter=tuple((axes[i].name, dim) for i, dim in scatter.items()),
        )
    operands = tuple(spec_of(o.factors, numbers, axes) for o in node.operands)
    results = tuple(spec_of(r.factors, numbers, axes) for r in node.results)
    summed = {i + 1 for i, factor in enumerate(node.factors) if factor.reduction}
    summing = [a.name for a, n in zip(axes, numbers, strict=True) if n in summed]
    sums = tuple(name for name in summing if name in used)
    if _has_own_form(node.primitive):
        return KernelForm(operands=operands, results=results, sums=sums)
    if node.primitive in SCATTERS:
        return IndexedForm(operands=operands, sums=sums)
    manual = used or [axis.name for axis in axes]
    rows = RowsForm(operands=operands, results=results, axes=frozenset(manual))
    if node.primitive in ROWS:
        return rows
    if node.primitive in CONVOLUTIONS:
        return GroupsForm(rows=rows)
    return None


def whole_form(
    primitive: str, operands: int, results: int, axes: Sequence[MeshAxis]
) -> Form | None:
    """The form of an op that no mesh axis may split, None if XLA may try.

    Its operands are made inside the program, so it is no node and has no states; what
    they meet may be sharded. XLA then splits the op too, fails at transforms and at
    sums by a function of the program's own, and sums groups of the batch wrongly.
    """
    if primitive not in {*TRANSFORMS, *CONVOLUTIONS, *FOLDS}:
        return None
    return RowsForm(
        operands=(PartitionSpec(),) * operands,
        results=(PartitionSpec(),) * results,
        axes=frozenset(axis.name for axis in axes),
    )


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

    Those that shard a dim in the value's layout. A scattered part lies inside the part
    that a device had; where it belongs further out, it is permuted there afterwards.
    """
    (result,) = node.results
    ends = op_ends(result.factors, node, numbers, value_factors, value_numbers)
    if not scatters_sums(node.primitive, result.array.shape, *ends, axes):
        return {}
    source, target = ends
    partial = source == len(result.factors) + 1
    return {
        i: int(target[i]) - 1
        for i, axis in enumerate(axes)
        if partial[i] and target[i] and axis.size > 1
    }
