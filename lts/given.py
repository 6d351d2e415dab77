"""Decisions that a program leaves no choice of: genes with one value from the start.

A `shard_map` has bound its mesh axes. What is never priced (the cheaper branches of a
cond) inherits its layout: a search would lay it out at random.
"""

from collections.abc import Iterator, Mapping, Sequence

from lts.graph import Node, OpGraph
from lts.mesh import Degrees
from lts.variables import Variable

INHERIT = 0
"""Value of an override gene that leaves the layout to the roles."""


def given_states(
    graphs: Mapping[str, OpGraph],
    variables: Sequence[Variable],
    degrees: Sequence[Degrees],
) -> Iterator[tuple[int, int, int]]:
    """Variable, axis and value of every override gene that is given.

    Raises:
      ValueError: if a `shard_map` binds a mesh that is not the one to plan for.
    """
    unpriced = {phase: _unpriced(graph) for phase, graph in graphs.items()}
    for number, variable in enumerate(variables):
        for phase, index in variable.members:
            node = graphs[phase].nodes[index]
            if node.fixed:
                yield from ((number, *pair) for pair in _bound(node, degrees))
        if all(index in unpriced[phase] for phase, index in variable.members):
            for axis in range(len(degrees[0].axes)):
                yield number, axis, INHERIT


def _bound(node: Node, degrees: Sequence[Degrees]) -> Iterator[tuple[int, int]]:
    """Axis and value of every override gene of an op that the program laid out."""
    wanted = [(name, size) for name, size, _ in node.fixed]
    for found in degrees:
        if [(axis.name, axis.size) for axis in found.axes] != wanted:
            axes = ", ".join(f"{name}={size}" for name, size in wanted)
            raise ValueError(
                f"{node.name!r} ({node.source}) is a shard_map over the mesh {axes}; "
                "a plan must be for that mesh: pass mesh="
            )
    for number, (_, _, state) in enumerate(node.fixed):
        yield number, state + 1


def _unpriced(graph: OpGraph) -> set[int]:
    """Nodes that no execution counts: of branches that are not taken."""
    priced = {op.index for op in graph.ops if op.trips}
    for value in graph.values:
        parts = (*value.kernels, *value.reductions)
        if value.leaves or any(part.trips for part in parts):
            priced.add(value.index)
    for edge in graph.edges:
        if edge.trips:
            priced |= {edge.source, edge.target}
    return {node.index for node in graph.nodes} - priced
