"""Sizes of instances: which ones a cluster can be divided into, and which hold a model.

An *instance* is a mesh with its pipeline stages: part of a node, or whole nodes. The
degrees of a pool are those of all sizes that hold the weights and one request, so that
one search covers them all; an instance has the GPUs of its degrees.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from lts.graph import OpGraph
from lts.hardware import Cluster
from lts.mesh import AXIS_NAMES, Degrees, MeshAxis, enumerate_degrees
from lts.prepare import (
    MAX_NODES,
    NoFeasiblePlanError,
    check_fit,
    least_needed,
    num_layers,
    spread_bytes,
)
from lts.space import build_space

FEW_NODES = 8
"""Up to so many nodes, an instance may have any number of them."""

MAX_DEGREES = 64
"""Degrees of one pool: it bounds the time and memory of its tables."""


def instances(cluster: Cluster, *, alone: bool) -> list[Cluster]:
    """Every size of an instance, as a cluster of its own, smallest first.

    Parts of a node, then whole nodes: any number in a small cluster; in a large one
    those that divide it and powers of two, up to half.

    Args:
      alone: whether there is one pool, so that an instance may take all.
    """
    node, nodes = cluster.gpus_per_node, cluster.nodes
    found = [cluster.resized(1, g) for g in range(1, node + 1) if node % g == 0]
    for count in range(2, nodes + 1):
        even = nodes % count == 0 or count & (count - 1) == 0
        part = count <= nodes // 2 or count == nodes
        if nodes <= FEW_NODES or (even and part):
            found.append(cluster.resized(count, node))
    most = cluster.num_gpus if alone else cluster.num_gpus - 1
    return [instance for instance in found if instance.num_gpus <= most]


def instance_of(gpus: int, cluster: Cluster) -> Cluster:
    """An instance of so many GPUs.

    Raises:
      ValueError: if it is neither part of a node nor whole nodes of the cluster.
    """
    node = cluster.gpus_per_node
    if gpus <= node and node % gpus == 0:
        return cluster.resized(1, gpus)
    if gpus % node == 0 and gpus <= cluster.num_gpus:
        return cluster.resized(gpus // node, node)
    raise ValueError(
        f"an instance of {gpus} GPUs cannot be had on {cluster}: its degrees must "
        f"multiply to a divisor of {node} GPUs, or to whole nodes of them"
    )


def instance_degrees(
    sizes: Sequence[Cluster], layers: int, max_stages: int | None = None
) -> list[Degrees]:
    """Degrees of instances of all sizes, with equally many axes."""
    found = [
        degrees
        for size in sizes
        for degrees in enumerate_degrees(size, num_layers=layers)
        if max_stages is None or degrees.stages <= max_stages
    ]
    width = max((len(degrees.axes) for degrees in found), default=1)
    return [_widened(degrees, width) for degrees in found]


def _widened(degrees: Degrees, width: int) -> Degrees:
    missing = [(1, True)] * (width - len(degrees.axes))
    axes = [*missing, *((axis.size, axis.inside) for axis in degrees.axes)]
    return dataclasses.replace(
        degrees,
        axes=tuple(
            MeshAxis(name=AXIS_NAMES[i], size=size, inside=inside)
            for i, (size, inside) in enumerate(axes)
        ),
    )


def bounded(degrees: Sequence[Degrees], most: int = MAX_DEGREES) -> list[Degrees]:
    """Degrees without the deepest pipelines, so that at most so many are left.

    Those with fewest stages are always kept.
    """
    kept = list(degrees)
    for limit in sorted({d.stages for d in degrees}, reverse=True):
        kept = [d for d in degrees if d.stages <= limit]
        if len(kept) <= most:
            break
    return kept


def fitting_degrees(
    graphs: Mapping[str, OpGraph], cluster: Cluster, max_stages: int | None, name: str
) -> dict[str, list[Degrees]]:
    """Per phase, degrees of the instances that hold the weights and one request.

    Raises:
      NoFeasiblePlanError: if the cluster has no room for one of each phase; it names
        the smallest cluster of the same GPUs that would do.
    """
    sizes = instances(cluster, alone=len(graphs) == 1)
    found = {}
    for phase, graph in graphs.items():
        degrees = instance_degrees(sizes, num_layers(graph), max_stages)
        found[phase] = _that_fit({phase: graph}, degrees, cluster)
    least = {
        phase: min((d.num_gpus for d in degrees), default=cluster.num_gpus + 1)
        for phase, degrees in found.items()
    }
    spare = cluster.num_gpus - sum(least.values())
    if spare >= 0:
        return {
            phase: bounded([d for d in own if d.num_gpus <= least[phase] + spare])
            for phase, own in found.items()
        }
    if len(graphs) == 1:
        (graph,) = graphs.values()
        layers = num_layers(graph)
        space = build_space(graphs, instance_degrees(sizes, layers, max_stages))
        check_fit(graphs, space, cluster, layers, name)
    raise NoFeasiblePlanError(_no_room(graphs, cluster, name))


def _that_fit(
    graph: Mapping[str, OpGraph], degrees: Sequence[Degrees], cluster: Cluster
) -> list[Degrees]:
    if not degrees:
        return []
    _, needed = least_needed(build_space(graph, degrees))
    fit = needed <= cluster.usable_bytes
    return [d for d, held in zip(degrees, fit, strict=True) if held]


def _no_room(graphs: Mapping[str, OpGraph], cluster: Cluster, name: str) -> str:
    """That two pools do not fit, and where they would."""
    node = cluster.gpus_per_node
    if cluster.nodes == 1:
        node = max(node, 8)
    least = {
        phase: _least_gpus({phase: graph}, cluster.resized(1, node))
        for phase, graph in graphs.items()
    }
    sizes = [gpus for gpus in least.values() if gpus is not None]
    remedy = f"no cluster of these GPUs up to {MAX_NODES} nodes would do"
    if len(sizes) == len(least):
        for larger in _clusters(cluster, node):
            if _has_room(larger, sizes):
                remedy = f"the smallest cluster that would do is {larger}"
                break
    needs = " and ".join(
        f"{gpus or 'more'} GPUs to {phase}" for phase, gpus in least.items()
    )
    return (
        f"{name} does not fit {cluster} as two pools: each holds all weights, so with "
        f"one request an instance needs {needs} at least; {remedy}"
    )


def _least_gpus(graph: Mapping[str, OpGraph], cluster: Cluster) -> int | None:
    """GPUs of the smallest instance that holds the model, on nodes of the cluster."""
    (phase_graph,) = graph.values()
    spread, layers = spread_bytes(phase_graph), num_layers(phase_graph)
    parts = instances(cluster, alone=True)
    whole = (
        cluster.resized(count, cluster.gpus_per_node)
        for count in range(2, MAX_NODES // 2 + 1)
    )
    for size in (*parts, *whole):
        if spread > size.num_gpus * cluster.usable_bytes:
            continue  # not even in equal parts
        if _that_fit(graph, instance_degrees([size], layers), cluster):
            return size.num_gpus
    return None


def _clusters(cluster: Cluster, node: int) -> list[Cluster]:
    """Larger clusters of the same GPUs, in order."""
    single = [cluster.resized(1, gpus) for gpus in range(cluster.gpus_per_node, node)]
    first = cluster.nodes if node == cluster.gpus_per_node else 1
    several = [cluster.resized(count, node) for count in range(first, MAX_NODES + 1)]
    return [*(single if cluster.nodes == 1 else []), *several]


def _has_room(cluster: Cluster, sizes: Sequence[int]) -> bool:
    """Whether instances of these sizes, or the next larger ones, fit together."""
    have = [size.num_gpus for size in instances(cluster, alone=False)]
    taken = [min((g for g in have if g >= gpus), default=None) for gpus in sizes]
    known = [gpus for gpus in taken if gpus is not None]
    return len(known) == len(taken) and sum(known) <= cluster.num_gpus
