"""One function at several shapes: graphs with common factors, so that nodes may agree.

The traces of a function at different shapes have the same nodes (by name), but labels
of their own. Here a label is followed from shape to shape along the dims of equal
nodes; it is named after the first shape that has it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lts.graph import Node, OpGraph
from lts.tracing import link_phases
from lts.tracing.groups import UnionFind

Dims = tuple[int | None, ...]


def link_shapes(graphs: Mapping[str, OpGraph]) -> dict[str, OpGraph]:
    """Graphs of one function at several shapes with common labels, names and groups.

    Args:
      graphs: by phase, as traced; names are those of the first.

    Raises:
      ValueError: if the function is another program at one of its shapes.
    """
    alone = {
        phase: link_phases({phase: graph})[phase] for phase, graph in graphs.items()
    }
    if len(alone) == 1:
        return alone
    _check_same_program(alone)
    classes = _classes(alone)
    names = _names(alone, classes)
    numbers = {root: i for i, root in enumerate(names)}
    groups = _groups(alone)

    def renamed(phase: str, node: Node) -> Node:
        seen: Counter[str] = Counter()
        factors = []
        for factor in node.factors:
            root = classes.find((phase, factor.label))
            name = names[root] + "'" * seen[names[root]]
            seen[names[root]] += 1
            factors.append(replace(factor, name=name, label=numbers[root]))
        return replace(node, factors=tuple(factors))

    return {
        phase: replace(
            graph,
            nodes=tuple(renamed(phase, node) for node in graph.nodes),
            groups=groups[phase],
            hub_labels=frozenset(
                numbers[classes.find((phase, label))] for label in graph.hub_labels
            ),
        )
        for phase, graph in alone.items()
    }


def _check_same_program(graphs: Mapping[str, OpGraph]) -> None:
    (first, leading), *others = graphs.items()
    known = {op.name for op in leading.ops}
    for phase, graph in others:
        if differing := sorted(known ^ {op.name for op in graph.ops}):
            raise ValueError(
                f"the function is another program at {phase} than at {first}: only one "
                f"has {', '.join(differing[:3])}; plan these shapes one by one"
            )


def _dims(node: Node) -> Iterator[tuple[Any, Dims]]:
    """Factors on the dims of every array of a node, by what the array is."""
    for kind, arrays in (("operand", node.operands), ("result", node.results)):
        for i, array in enumerate(arrays):
            yield (kind, i), array.factors
    for leaf in node.leaves:
        yield (leaf.path, leaf.is_output), leaf.factors
    yield "largest", node.array_factors


def _classes(graphs: Mapping[str, OpGraph]) -> UnionFind:
    """Labels (by phase) that are the same index of the function."""
    classes = UnionFind()
    first: dict[tuple[str, Any], tuple[str, Node, Dims]] = {}
    for phase, graph in graphs.items():
        for node in graph.nodes:
            for array, dims in _dims(node):
                there, other, known = first.setdefault(
                    (node.name, array), (phase, node, dims)
                )
                for i, j in zip(dims, known, strict=False):
                    if i is not None and j is not None:
                        own = (phase, node.factors[i].label)
                        classes.union(own, (there, other.factors[j].label))
    pairs: dict[tuple, tuple[str, int]] = {}
    for phase, graph in graphs.items():
        for factor, parts in _both(graph):
            key = tuple(classes.find((phase, label)) for label in parts)
            classes.union((phase, factor), pairs.setdefault(key, (phase, factor)))
    return classes


def _both(graph: OpGraph) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Labels that shard two factors at once, with those of the two."""
    for node in graph.ops:
        for factor in node.factors:
            if factor.both:
                yield factor.label, tuple(node.factors[i].label for i in factor.both)


def _names(graphs: Mapping[str, OpGraph], classes: UnionFind) -> dict[Any, str]:
    """A name per class, that of the first shape that has it."""
    names: dict[Any, str] = {}
    taken: set[str] = set()
    for phase, graph in graphs.items():
        fresh: dict[Any, str] = {}
        for node in graph.nodes:
            for factor in node.factors:
                root = classes.find((phase, factor.label))
                if root not in names:
                    fresh.setdefault(root, factor.name.rstrip("'"))
        for root, name in fresh.items():
            while name in taken:
                name += "2"
            names[root] = name
        taken = set(names.values())
    return names


def _groups(
    graphs: Mapping[str, OpGraph],
) -> dict[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Groups of ops, those joined that have an op in common at any shape."""
    ties, names = UnionFind(), dict[str, str]()
    members: dict[str, list[tuple[str, Sequence[Node]]]] = {}
    for phase, graph in graphs.items():
        members[phase] = []
        for group, ops in graph.groups:
            own = [graph.nodes[op] for op in ops]
            members[phase].append((group, own))
            for op in own:
                ties.union(op.name, own[0].name)
                names.setdefault(op.name, group)
    order: dict[str, str] = {}
    for op, name in names.items():
        order.setdefault(ties.find(op), name)
    return {
        phase: tuple(
            (name, tuple(op.index for op in graph.ops if ties.find(op.name) == root))
            for root, name in order.items()
        )
        for phase, graph in graphs.items()
    }
