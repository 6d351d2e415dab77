"""Names of factors, and groups of ops that take one role.

Factors that are the same index of the model carry one *label* through the program, and
through all phases of a served model (its phases share parameters and caches by path).
Labels get names, from hints where the model gives them, else letters.

Ops that share a label that is not an index of the residual stream (the *hub*: a value
that several ops write) form a group: attention through its heads, a feed-forward block
through its hidden index. A mesh axis has one role per group.
"""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lts.graph import Factor, Node, NodeKind, OpGraph
from lts.tracing.groups import UnionFind

Key = tuple[str, int]
"""A label of one phase: (phase, number)."""


def link_phases(
    graphs: Mapping[str, OpGraph], hints: Mapping[str, Sequence[str]] | None = None
) -> dict[str, OpGraph]:
    """The graphs with common labels, named factors and groups.

    Args:
      graphs: by phase; labels are those of each trace.
      hints: per argument path, a name for every dim ("" for none).
    """
    classes = UnionFind()
    find = classes.find
    shared: dict[tuple[str, int], Key] = {}
    names: dict[Key, str] = {}
    for phase, graph in graphs.items():
        # Names of inputs first: where a cache holds just the prompt, its positions are
        # those of the sequence.
        for node in sorted(graph.values, key=lambda n: n.kind is not NodeKind.INPUT):
            for leaf in node.leaves:
                if leaf.is_output:
                    continue
                for dim, factor in enumerate(leaf.factors):
                    if factor is None:
                        continue
                    key = (phase, node.factors[factor].label)
                    if node.kind in (NodeKind.PARAMETER, NodeKind.CACHE):
                        first = shared.setdefault((leaf.path, dim), key)
                        classes.union(key, first)
                    hint = (hints or {}).get(leaf.path, ())
                    if dim < len(hint) and hint[dim]:
                        names.setdefault(key, hint[dim])
    roots: dict[Any, str] = {}
    for key, name in names.items():
        roots.setdefault(find(key), name)
    letters = _letters(set(roots.values()))
    numbers: dict[Any, int] = {}
    for phase, graph in graphs.items():
        for node in graph.values:  # what an argument has gets a letter
            if any(not leaf.is_output for leaf in node.leaves):
                for factor in node.factors:
                    root = find((phase, factor.label))
                    if root not in roots:
                        roots[root] = next(letters)
    for phase, graph in graphs.items():
        for node in graph.nodes:
            for place, factor in enumerate(node.factors):
                root = _root(node, factor, phase, find)
                numbers.setdefault(root, len(numbers))
                if factor.both:
                    roots[root] = "+".join(roots[part] for part in root)
                roots.setdefault(root, f"{node.name}.{place}")
    linked = {
        phase: _relabelled(graph, phase, find, numbers, roots)
        for phase, graph in graphs.items()
    }
    return _grouped(linked)


def _root(node: Node, factor: Factor, phase: str, find) -> Any:
    """Class of a factor's label; of two at once, the pair of their classes."""
    if factor.both:
        return tuple(find((phase, node.factors[part].label)) for part in factor.both)
    return find((phase, factor.label))


def _letters(taken: set[str]):
    for count in itertools.count(1):
        for letter in "ijklmnopqrstuvwxyzabcdefgh":
            name = letter if count == 1 else f"{letter}{count}"
            if name not in taken:
                yield name


def _relabelled(graph: OpGraph, phase, find, numbers, roots) -> OpGraph:
    def renamed(node: Node) -> tuple[Factor, ...]:
        seen: Counter[str] = Counter()
        out = []
        for factor in node.factors:
            root = _root(node, factor, phase, find)
            name = roots[root]
            seen[name] += 1
            suffix = "'" * (seen[name] - 1)
            out.append(
                dataclasses.replace(factor, name=name + suffix, label=numbers[root])
            )
        return tuple(out)

    nodes = [
        dataclasses.replace(node, factors=renamed(node), name=name)
        for node, name in zip(graph.nodes, _unique_names(graph), strict=True)
    ]
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _unique_names(graph: OpGraph) -> list[str]:
    seen: Counter[str] = Counter()
    names = []
    for node in graph.nodes:
        seen[node.name] += 1
        count = seen[node.name]
        names.append(node.name if count == 1 else f"{node.name}#{count}")
    return names


def hub_value(graph: OpGraph) -> Node | None:
    """The residual stream: the value in a cycle that most ops touch, or None.

    It has two sources at least (ops that write it, arguments that start it), and what
    is read from it comes back to it.
    """
    sources: Counter[int] = Counter()
    touches: Counter[int] = Counter()
    following: dict[int, set[int]] = {node.index: set() for node in graph.nodes}
    for edge in graph.edges:
        following[edge.source].add(edge.target)
        if graph.nodes[edge.source].is_op:
            sources[edge.target] += 1
        touches.update((edge.source, edge.target))
    for node in graph.values:
        sources[node.index] += any(not leaf.is_output for leaf in node.leaves)
    best: Node | None = None
    for node in graph.values:
        if node.kind is NodeKind.CACHE or sources[node.index] < 2:
            continue
        if best is not None and touches[node.index] <= touches[best.index]:
            continue
        if _comes_back(node.index, following):
            best = node
    return best


def _comes_back(start: int, following: Mapping[int, set[int]]) -> bool:
    seen: set[int] = set()
    waiting = list(following[start])
    while waiting:
        node = waiting.pop()
        if node == start:
            return True
        if node not in seen:
            seen.add(node)
            waiting += following[node]
    return False


def _grouped(graphs: Mapping[str, OpGraph]) -> dict[str, OpGraph]:
    hub: set[int] = set()
    for graph in graphs.values():
        node = hub_value(graph)
        hub |= {factor.label for factor in node.factors} if node is not None else set()
    ties = UnionFind()
    for phase, graph in graphs.items():
        near = _nearest(graph, hub)
        for op in graph.ops:
            own = [factor.label for factor in op.factors if factor.label not in hub]
            for label in own:
                ties.union(("op", phase, op.index), label)
            if op.index in near:
                ties.union(("op", phase, op.index), ("op", phase, near[op.index]))
    by_root: dict = {}
    for phase, graph in graphs.items():
        for op in graph.ops:
            root = ties.find(("op", phase, op.index))
            by_root.setdefault(root, {}).setdefault(phase, []).append(op)
    names: set[str] = set()
    grouped: dict[str, list[tuple[str, tuple[int, ...]]]] = {p: [] for p in graphs}
    for members in by_root.values():
        ops = [op for found in members.values() for op in found]
        name = _common_name([op.name for op in ops])
        while name in names:
            name += "'"
        names.add(name)
        for phase in graphs:
            own = tuple(op.index for op in members.get(phase, ()))
            grouped[phase].append((name, own))
    return {
        phase: dataclasses.replace(
            graph, groups=tuple(grouped[phase]), hub_labels=frozenset(hub)
        )
        for phase, graph in graphs.items()
    }


def _nearest(graph: OpGraph, hub: set[int]) -> dict[int, int]:
    """For ops with indexes of the residual stream alone, an op whose role they take.

    The first one that has others and that touches the same activations or caches: a
    ranking follows the scores that it ranks.
    """
    joined = UnionFind()
    touched: dict[int, list[int]] = {}
    stream = hub_value(graph)
    for edge in graph.edges:
        ends = [graph.nodes[i] for i in (edge.source, edge.target)]
        values = [n for n in ends if not n.is_op]
        if any(n is stream or n.kind is NodeKind.PARAMETER for n in values):
            continue
        for node in ends[1:]:
            if not ends[0].is_op and not node.is_op:
                joined.union(ends[0].index, node.index)
        for op in (n for n in ends if n.is_op):
            touched.setdefault(op.index, []).extend(v.index for v in values)
    labelled = {
        op.index for op in graph.ops if any(f.label not in hub for f in op.factors)
    }
    found = {}
    for op in graph.ops:
        if op.index in labelled or not op.factors:
            continue
        own = {joined.find(value) for value in touched.get(op.index, ())}
        for other in sorted(labelled):
            if own & {joined.find(value) for value in touched.get(other, ())}:
                found[op.index] = other
                break
    return found


def _common_name(names: Sequence[str]) -> str:
    split = [name.split("/") for name in names]
    prefix = os.path.commonprefix(split)
    return "/".join(prefix) if prefix else names[0]


def dim_names(graphs: Mapping[str, OpGraph]) -> dict[str, tuple[str, ...]]:
    """Name of the factor on every dim of every argument: hints for a later trace."""
    found: dict[str, tuple[str, ...]] = {}
    for graph in graphs.values():
        for node in graph.values:
            for leaf in node.leaves:
                if not leaf.is_output:
                    names = [
                        "" if f is None else node.factors[f].name.rstrip("'")
                        for f in leaf.factors
                    ]
                    both = itertools.zip_longest(
                        found.get(leaf.path, ()), names, fillvalue=""
                    )
                    found[leaf.path] = tuple(old or new for old, new in both)
    return found
