"""The two pools of a model, ready to be searched: a space and its tables per phase."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from lts.cost.tables import batch_ladder, padded
from lts.cost.transfer import cache_bytes, link_between, transfer_s
from lts.evaluate.tables import TableEvaluator
from lts.graph import OpGraph
from lts.hardware import Cluster
from lts.mesh import Degrees
from lts.pools.sizes import fitting_degrees, instance_degrees, instance_of
from lts.prepare import (
    Prepared,
    most_sequences,
    num_layers,
    prompt_rungs,
    serving_pricing,
    tables_of,
)
from lts.problem import TRACED_BATCH, Problem, linked, trace_problem
from lts.space import build_space
from lts.workload import Workload


def pool_phases(workload: Workload) -> tuple[str, ...]:
    """Phases that have work: the first token comes from prefill."""
    return ("prefill", "decode") if workload.output_len > 1 else ("prefill",)


def prepare_pools(
    problems: Mapping[str, Problem],
    workload: Workload,
    cluster: Cluster,
    *,
    engine: str | None = None,
    sizes: Mapping[str, int] | None = None,
    max_stages: int | None = None,
    on_unknown: str = "error",
) -> dict[str, Prepared]:
    """Trace the phases of a model and price the space of each.

    Args:
      problems: per phase of `pool_phases`.
      engine: as in `lts.prepare.prepare_problem`.
      sizes: per phase, GPUs of an instance; None for all that hold the model.

    Raises:
      ValueError: for a size that no instance has, or two that leave no room.
      NoFeasiblePlanError: if no two instances hold the model.
    """
    if max_stages is not None and max_stages < 1:
        raise ValueError(f"max_stages must be at least 1, got {max_stages}")
    traced, graphs = {}, {}
    for phase, problem in problems.items():
        traced[phase] = trace_problem(problem, (phase,), TRACED_BATCH, on_unknown)
        graphs |= linked(traced[phase], problem.dim_names)
    if sizes is None:
        name = next(iter(problems.values())).name
        degrees = fitting_degrees(graphs, cluster, max_stages, name)
    else:
        degrees = _given_degrees(graphs, cluster, sizes, max_stages)
    pools = {}
    for phase, graph in graphs.items():
        own = {phase: graph}
        space = build_space(own, degrees[phase])
        rows = [_batches(d, graph, phase, workload, cluster) for d in space.degrees]
        batches = {phase: padded(rows)}
        pricing = serving_pricing(problems[phase], workload, cluster, engine)
        tables = tables_of(own, space, pricing, batches, TRACED_BATCH)
        evaluator = TableEvaluator(tables=tables, workload=workload)
        pools[phase] = Prepared(traced=traced[phase], graphs=own, evaluator=evaluator)
    if "decode" in pools:
        evaluator = _with_transfer(pools)
        pools["prefill"] = dataclasses.replace(pools["prefill"], evaluator=evaluator)
    return pools


def _given_degrees(
    graphs: Mapping[str, OpGraph],
    cluster: Cluster,
    sizes: Mapping[str, int],
    max_stages: int | None,
) -> dict[str, list[Degrees]]:
    found = {}
    for phase, graph in graphs.items():
        size = instance_of(sizes[phase], cluster)
        found[phase] = instance_degrees([size], num_layers(graph), max_stages)
    needed = sum(sizes[phase] for phase in graphs)
    if needed > cluster.num_gpus:
        listed = " and ".join(f"{sizes[phase]} to {phase}" for phase in graphs)
        raise ValueError(
            f"{cluster} has {cluster.num_gpus} GPUs, and one instance of each pool "
            f"needs {needed} ({listed}); give smaller degrees, or more GPUs"
        )
    return found


def _batches(
    degrees: Degrees, graph: OpGraph, phase: str, workload: Workload, cluster: Cluster
) -> list[int]:
    """Sequences per stage and call to try.

    With the requests in flight given, those of one instance of any number that the
    cluster has room for.
    """
    stages, given = degrees.stages, workload.concurrency
    top = most_sequences(graph, cluster.resized(1, degrees.num_gpus))
    if phase == "decode":
        if given is None:
            return batch_ladder(degrees.mesh_size, max(1, top // stages))
        most = max(1, (cluster.num_gpus - 1) // degrees.num_gpus)
        counts = range(1, most + 1)
        return sorted({math.ceil(given / (count * stages)) for count in counts})
    if given is None:
        return prompt_rungs(degrees.mesh_size, max(1, top // stages))
    if not workload.prefill_only:
        return prompt_rungs(degrees.mesh_size, max(1, min(top, given) // stages))
    count = cluster.num_gpus // degrees.num_gpus
    return [math.ceil(given / (count * stages))]


def _with_transfer(pools: Mapping[str, Prepared]) -> TableEvaluator:
    """Prefill's evaluator with the least that any hand-over of caches takes."""
    evaluator = pools["prefill"].evaluator
    tables, nbytes = evaluator.tables, cache_bytes(evaluator.tables)
    nearest = min(d.num_gpus for d in pools["decode"].space.degrees)
    rows = [
        transfer_s(
            batches,
            nbytes,
            d.num_gpus,
            None,
            link_between(d.num_gpus, nearest, tables.cluster),
        )
        for d, batches in zip(
            tables.space.degrees, tables.phases["prefill"].batches, strict=True
        )
    ]
    return dataclasses.replace(evaluator, transfer_s=np.stack(rows))
