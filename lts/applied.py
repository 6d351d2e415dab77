"""A function with a phase of a plan applied: traced at its first call, then jitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lts.apply import AnyMesh, jitted
from lts.assignment import Assignment
from lts.graph import NodeKind, OpGraph
from lts.problem import argument_names
from lts.specs import PhaseSpecs, matched_states, phase_specs
from lts.tracing import CLOSED, Traced, identity, link_phases, trace_program

MOVED_BYTES = 2**20
"""Arrays up to this size are moved to their sharding at a call: tokens, positions."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lowerable:
    """One signature of an applied function."""

    step: Any  # jax.jit of flat arguments
    traced: Traced
    graph: OpGraph
    states: list[np.ndarray]
    specs: PhaseSpecs
    leaves: list[Any]  # abstract: flat arguments, then closed-over arrays


@dataclass(eq=False, kw_only=True)
class AppliedStep:
    """A jitted function with shardings inside; call it as the function itself.

    Arguments must lie on the mesh already (`plan.device_put`). Each new signature of
    shapes is traced once. Donated arguments are invalid after a call.

    Attributes:
      function: the user's.
      assignment: without axes of size 1.
      phase: of the assignment.
      dims: names of the dims of every argument, by path.
      mesh: with Auto axes; abstract for lowering only.
      donated: names of arguments whose buffers the results may take.
      weights: names of the arguments that hold parameters.
    """

    function: Callable[..., Any]
    assignment: Assignment
    phase: str
    dims: Mapping[str, Sequence[str]]
    mesh: AnyMesh
    donated: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    _found: dict[Any, Lowerable] = field(default_factory=dict)
    _closed: dict[int, jax.Array] = field(
        default_factory=dict
    )  # by identity, on the mesh

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        found = self.prepared(args, kwargs)
        leaves = [
            self._placed(leaf, path, spec)
            for leaf, path, spec in zip(
                jax.tree.leaves((args, kwargs)),
                found.traced.in_paths,
                found.specs.arguments,
                strict=True,
            )
        ]
        outs = found.step(*leaves, *self._closed_over(found))
        return jax.tree.unflatten(found.traced.out_tree, outs)

    def _closed_over(self, found: Lowerable) -> list[jax.Array]:
        """Arrays that the function closes over, put on the mesh once."""
        for array, spec in zip(
            found.traced.closed_over.values(), found.specs.closed_over, strict=True
        ):
            if identity(array) not in self._closed:
                assert isinstance(self.mesh, Mesh)
                with jax.ensure_compile_time_eval():  # kept for later calls
                    (self._closed[identity(array)],) = put([array], [spec], self.mesh)
        arrays = found.traced.closed_over.values()
        return [self._closed[identity(array)] for array in arrays]

    def _placed(self, leaf: Any, path: str, spec: PartitionSpec) -> Any:
        """A leaf as the step takes it: a small one is moved, a large one must lie so.

        Raises:
          ValueError: if a large array lies otherwise than planned.
        """
        if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        if not leaf.committed:
            return leaf
        wanted = NamedSharding(self.mesh, spec)
        if leaf.sharding.is_equivalent_to(wanted, leaf.ndim):
            return leaf
        if leaf.nbytes <= MOVED_BYTES:
            return jax.device_put(leaf, wanted)
        raise ValueError(
            f"argument {path!r} ({leaf.nbytes:,} bytes) lies as {leaf.sharding}, the "
            f"plan has {spec}; put it there once with plan.device_put"
        )

    def device_put(self, *args: Any, **kwargs: Any) -> Any:
        """The arguments on the mesh, as planned; with keywords, the pair of both."""
        found = self.prepared(args, kwargs)
        assert isinstance(self.mesh, Mesh)
        leaves, tree = jax.tree.flatten((args, kwargs))
        placed = jax.tree.unflatten(tree, put(leaves, found.specs.arguments, self.mesh))
        return placed if kwargs else placed[0]

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowered for these (possibly abstract) arguments, as `jax.jit` does."""
        found = self.prepared(args, kwargs)
        return found.step.lower(*found.leaves)

    def prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lowerable:
        """The jit for a signature, traced at its first use."""
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        shapes = [abstract(x) for x in leaves]
        key = (tree, tuple((leaf.shape, leaf.dtype) for leaf in shapes))
        if key not in self._found:
            self._found[key] = self._prepare(tree, shapes)
        return self._found[key]

    def _kind(self, path: str) -> NodeKind:
        heads = (*self.weights, CLOSED) if self.weights else ()
        return NodeKind.PARAMETER if path.split("/")[0] in heads else NodeKind.INPUT

    def _prepare(self, tree: Any, leaves: list[Any]) -> Lowerable:
        args, kwargs = jax.tree.unflatten(tree, leaves)
        names = argument_names(self.function, len(args))
        traced = trace_program(
            self.function,
            args,
            kwargs,
            names=names,
            kinds=self._kind,
            on_unknown="replicate",  # or there would be no plan
        )
        hints = {
            path: _hint(path, len(leaf.shape), self.dims)
            for path, leaf in zip(traced.in_paths, leaves, strict=True)
        }
        graph = link_phases({self.phase: traced.graph}, hints)[self.phase]
        states = matched_states(graph, self.assignment.states[self.phase])
        specs = phase_specs(traced, graph, states, self.assignment)
        _check_divides(specs, traced, leaves, self.mesh)
        heads = {*self.donated}
        donate = [
            i for i, path in enumerate(traced.in_paths) if path.split("/")[0] in heads
        ]
        step = jitted(traced, specs, self.mesh, donate)
        return Lowerable(
            step=step,
            traced=traced,
            graph=graph,
            states=states,
            specs=specs,
            leaves=[*leaves, *map(abstract, traced.closed_over.values())],
        )


def _hint(path: str, rank: int, dims: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Names of an argument's dims; of one in a list of layers, its stacked twin's."""
    if path in dims:
        return dims[path]
    stacked = dims.get("/".join(p for p in path.split("/") if not p.isdigit()), ())
    return stacked[1:] if len(stacked) == rank + 1 else stacked


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an argument, as jax sees it."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    dtype = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _check_divides(
    specs: PhaseSpecs, traced: Traced, leaves: Sequence[Any], mesh: AnyMesh
) -> None:
    for path, leaf, spec in zip(traced.in_paths, leaves, specs.arguments, strict=True):
        for dim, entry in enumerate(spec):
            names = (entry,) if isinstance(entry, str) else entry or ()
            ways = int(np.prod([mesh.shape[name] for name in names], dtype=int))
            if leaf.shape[dim] % ways:
                raise ValueError(
                    f"cannot apply the plan to {path!r} of shape {leaf.shape}: dim "
                    f"{dim} (size {leaf.shape[dim]}) over mesh axes {names} (size "
                    f"{ways}). Call it with a size that {ways} divides, or search "
                    "again for these shapes"
                )


def auto_mesh(
    devices: Sequence[Any] | None, shape: Mapping[str, int]
) -> Mesh | AbstractMesh:
    """A mesh with Auto axes over `devices` (abstract for None), in their order."""
    auto = (AxisType.Auto,) * len(shape)
    if devices is None:
        return AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=auto)
    grid = np.array(devices).reshape(tuple(shape.values()))
    return Mesh(grid, tuple(shape), axis_types=auto)


def put(tree: Any, specs: Sequence[PartitionSpec], mesh: AnyMesh) -> Any:
    """`jax.device_put` of a pytree; one spec per leaf, in order."""
    leaves, structure = jax.tree.flatten(tree)
    placed = [
        jax.device_put(x, NamedSharding(mesh, s))
        for x, s in zip(leaves, specs, strict=True)
    ]
    return jax.tree.unflatten(structure, placed)
