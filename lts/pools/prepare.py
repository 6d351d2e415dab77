"""The two pools of a model, ready to be searched: one space per phase.

An *instance* is a mesh with its pipeline stages: part of a node, or whole nodes. The
degrees of a pool's space are those of all sizes that hold the weights and one request,
so that one search covers them all; an instance has the GPUs of its degrees.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from lts.cost.tables import batch_ladder, padded
from lts.cost.transfer import cache_bytes, link_between, transfer_s
from lts.evaluate.tables import TableEvaluator
from lts.graph import OpGraph
from lts.hardware import Cluster
from lts.mesh import AXIS_NAMES, Degrees, MeshAxis, enumerate_degrees
from lts.prepare import (
    MAX_NODES,
    NoFeasiblePlanError,
    Prepared,
    check_fit,
    least_needed,
    most_sequences,
    num_layers,
    prompt_rungs,
    spread_bytes,
    tables_of,
)
from lts.problem import TRACED_BATCH, Problem, linked, trace_problem
from lts.space import build_space
from lts.tracing import Traced
from lts.workload import Workload

FEW_NODES = 8
"""Up to so many nodes, an instance may have any number of them."""

MAX_DEGREES = 64
"""Degrees of one pool: it bounds the time and memory of its tables."""


def pool_phases(workload: Workload) -> tuple[str, ...]:
    """Phases that have work: a first token comes from prefill."""
    return ("prefill", "decode") if workload.output_len > 1 else ("prefill",)


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
        part = count <= nodes // 2 or (alone and count == nodes)
        if nodes <= FEW_NODES or (even and part):
            found.append(cluster.resized(count, node))
    most = cluster.num_gpus if alone else cluster.num_gpus - 1
    return [instance for instance in found if instance.num_gpus <= most]


def instance_degrees(
    sizes: Sequence[Cluster], layers: int, max_stages: int | None
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
    sizes = [*missing, *((axis.size, axis.inside) for axis in degrees.axes)]
    return dataclasses.replace(
        degrees,
        axes=tuple(
            MeshAxis(name=AXIS_NAMES[i], size=size, inside=inside)
            for i, (size, inside) in enumerate(sizes)
        ),
    )


def bounded(degrees: Sequence[Degrees], most: int = MAX_DEGREES) -> list[Degrees]:
    """Degrees without the deepest pipelines, so many that `most` are left.

    Those without any pipeline are all kept.
    """
    kept = list(degrees)
    for limit in sorted({d.stages for d in degrees}, reverse=True):
        kept = [d for d in degrees if d.stages <= limit]
        if len(kept) <= most:
            break
    return kept


def prepare_pools(
    problems: Mapping[str, Problem],
    workload: Workload,
    cluster: Cluster,
    *,
    sizes: Mapping[str, int] | None = None,
    max_stages: int | None = None,
    on_unknown: str = "error",
) -> dict[str, Prepared]:
    """Trace the phases of a model and price the space of each.

    Args:
      problems: per phase of `pool_phases`.
      sizes: per phase, GPUs of an instance; None for all that hold the model.

    Raises:
      ValueError: for a size that no instance has, or that leaves no room.
      NoFeasiblePlanError: if two instances do not hold the model.
    """
    if max_stages is not None and max_stages < 1:
        raise ValueError(f"max_stages must be at least 1, got {max_stages}")
    traced: dict[str, Traced] = {}
    graphs: dict[str, OpGraph] = {}
    for phase, problem in problems.items():
        own = trace_problem(problem, (phase,), TRACED_BATCH, on_unknown)
        traced |= own
        graphs |= linked(own, problem.dim_names)
    if sizes is None:
        name = next(iter(problems.values())).name
        degrees = _fitting(graphs, cluster, max_stages, name)
    else:
        degrees = {
            phase: instance_degrees(
                _sized(sizes, phase, cluster), num_layers(graph), max_stages
            )
            for phase, graph in graphs.items()
        }
    found: dict[str, Prepared] = {}
    for phase in reversed(graphs):  # prefill needs to know what decode keeps
        graph = {phase: graphs[phase]}
        space = build_space(graph, degrees[phase])
        batches = {phase: _grid(graph[phase], space.degrees, workload, cluster)}
        tables = tables_of(graph, space, cluster, batches, TRACED_BATCH)
        evaluator = TableEvaluator(tables=tables, workload=workload)
        found[phase] = Prepared(
            traced={phase: traced[phase]}, graphs=graph, evaluator=evaluator
        )
    if "decode" in found:
        evaluator = _with_transfer(found, workload)
        found["prefill"] = dataclasses.replace(found["prefill"], evaluator=evaluator)
    return {phase: found[phase] for phase in graphs}


def prompt_bytes(pools: Mapping[str, Prepared], workload: Workload) -> float:
    """Bytes of the cache of one prompt, which prefill hands over to decode."""
    share = workload.input_len / workload.context_len
    read, kept = (
        cache_bytes(pools[phase].evaluator.tables) for phase in ("prefill", "decode")
    )
    return min(read, kept * share)


def _with_transfer(pools: Mapping[str, Prepared], workload: Workload) -> TableEvaluator:
    """Prefill's evaluator with the least that any hand-over of caches takes."""
    evaluator, cluster = pools["prefill"].evaluator, pools["decode"].evaluator
    tables, nbytes = evaluator.tables, prompt_bytes(pools, workload)
    smallest = min(d.num_gpus for d in cluster.space.degrees)
    rows = [
        transfer_s(
            batches,
            nbytes,
            d.num_gpus,
            None,
            link_between(d.num_gpus, smallest, tables.cluster),
        )
        for d, batches in zip(
            tables.space.degrees, tables.phases["prefill"].batches, strict=True
        )
    ]
    return dataclasses.replace(evaluator, transfer_s=np.stack(rows))


def _grid(
    graph: OpGraph, degrees: Sequence[Degrees], workload: Workload, cluster: Cluster
) -> np.ndarray:
    """Batches per stage and call to try; `[degrees, batches]`."""
    *_, phase = graph.phases if hasattr(graph, "phases") else ("",)
    raise NotImplementedError(phase, degrees, workload, cluster, math, padded)


