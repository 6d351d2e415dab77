"""Layouts of arguments that the user gives: specs to genes with one value."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax.sharding import PartitionSpec

from lts.graph import NONE
from lts.space import Space


def pin(space: Space, specs: Mapping[str, PartitionSpec]) -> Space:
    """The space with the layout of some arguments given.

    Args:
      specs: per argument path, its spec over the mesh axes of the space.

    Raises:
      ValueError: for an unknown path or axis, a dim that cannot be sharded, or ways
        that do not divide it.
    """
    names = [axis.name for axis in space.degrees[0].axes]
    pinned = dict(space.pinned)
    for path, spec in specs.items():
        found = _leaf_factors(space, path)
        longest = max(len(factors) for _, factors in found)
        for variable, factors in found:
            # What only another phase has (positions of a prompt) is left out here.
            entries = spec if len(factors) == longest else spec[: len(factors)]
            states = _pinned_states(path, PartitionSpec(*entries), factors, names)
            _check_ways(space, variable, states, path, spec)
            start = space.first_override + variable * space.num_axes
            for gene, name in enumerate(names, start):
                value = states[name] + 1
                if pinned.setdefault(gene, value) != value:
                    raise ValueError(
                        f"cannot pin {path!r} to {spec}: an argument that shares its "
                        f"layout is pinned to another one along {name!r}"
                    )
    return replace(space, pinned=tuple(sorted(pinned.items())))


def _check_ways(
    space: Space,
    variable: int,
    states: Mapping[str, int],
    path: str,
    spec: PartitionSpec,
) -> None:
    for number, factor in enumerate(space.variables[variable].factors):
        ways = math.prod(
            axis.size
            for axis in space.degrees[0].axes
            if states[axis.name] == number + 1
        )
        if not factor.batched and factor.units % ways:
            raise ValueError(
                f"cannot pin {path!r} to {spec}: {ways} ways do not divide dim "
                f"{factor.name!r} of {factor.units}"
            )


def _pinned_states(
    path: str, spec: PartitionSpec, factors: Sequence[int | None], names: Sequence[str]
) -> dict[str, int]:
    """State of every mesh axis that a spec asks for."""
    states = dict.fromkeys(names, NONE)
    for dim, entry in enumerate(spec):
        along = (entry,) if isinstance(entry, str) else tuple(entry or ())
        why = ""
        if unknown := [name for name in along if name not in states]:
            why = f"the mesh has no axis {unknown[0]!r}; it has {', '.join(names)}"
        elif list(along) != [name for name in names if name in along]:
            why = f"axes of dim {dim} must stand in mesh order: {', '.join(names)}"
        elif used := [name for name in along if states[name] != NONE]:
            why = f"axis {used[0]!r} is used twice"
        elif along and (dim >= len(factors) or factors[dim] is None):
            why = f"dim {dim} cannot be sharded"
        if why:
            raise ValueError(f"cannot pin {path!r} to {spec}: {why}")
        factor = factors[dim] if dim < len(factors) else None
        if along and factor is not None:
            states.update(dict.fromkeys(along, factor + 1))
    return states


def _leaf_factors(space: Space, path: str) -> list[tuple[int, list[int | None]]]:
    """Variables of an argument (one per phase, if not shared), factors on its dims."""
    known: list[str] = []
    found: dict[int, list[int | None]] = {}
    for number, variable in enumerate(space.variables):
        order = [factor.name for factor in variable.factors]
        for phase, index in variable.members:
            node = space.graphs[phase].nodes[index]
            for leaf in node.leaves:
                if leaf.is_output:
                    continue
                known.append(leaf.path)
                if leaf.path == path and number not in found:
                    names = [
                        None if f is None else node.factors[f].name
                        for f in leaf.factors
                    ]
                    found[number] = [
                        order.index(n) if n in order else None for n in names
                    ]
    if found:
        return list(found.items())
    near = difflib.get_close_matches(path, known, n=3)
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"there are {', '.join(dict.fromkeys(known))}"
    )
    raise ValueError(f"no argument {path!r}; {hint}")
