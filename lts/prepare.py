"""From a problem and a cluster to an evaluator: trace, space, tables.

Also says early, and with the remedy, when nothing can fit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from lts.cost.memory import is_looped, leaf_bytes
from lts.cost.pricing import Pricing
from lts.cost.profile import MIDDLE
from lts.cost.profile import load as load_profile
from lts.cost.sharding import shard
from lts.cost.tables import (
    CostTables,
    batch_ladder,
    build_tables,
    member_states,
    padded,
)
from lts.evaluate.tables import TableEvaluator
from lts.given import given_states
from lts.graph import NodeKind, OpGraph
from lts.hardware import Cluster
from lts.mesh import Degrees, enumerate_degrees
from lts.pins import pin
from lts.plain import (
    Pairs,
    PlainFunction,
    plain_function,
    state_pairs,
    tied_nodes,
    with_state,
)
from lts.problem import STEP, TRACED_BATCH, Problem, linked, trace_problem
from lts.shapes import link_shapes
from lts.space import Space, build_space
from lts.tracing import Traced
from lts.tracing.labels import hub_value
from lts.variables import Member, tied
from lts.workload import Workload

MAX_NODES = 512
"""Nodes up to which a cluster that would do is looked for."""


class NoFeasiblePlanError(RuntimeError):
    """No plan keeps all limits; the message says which one binds and what would do."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A problem, ready to be searched.

    Attributes:
      state: of a plain function, what comes back as which result, by argument.
    """

    traced: Mapping[str, Traced]
    graphs: Mapping[str, OpGraph]
    evaluator: TableEvaluator
    state: Mapping[str, Pairs] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        """The space of candidates."""
        return self.evaluator.space


def gigabytes(nbytes: float) -> str:
    """`12.3 GB`, decimal."""
    return f"{nbytes / 1e9:.1f} GB"


def prepare_problem(
    problem: Problem,
    workload: Workload,
    cluster: Cluster,
    *,
    degrees: Sequence[Degrees] | None = None,
    engine: str | None = None,
    max_stages: int | None = None,
    pins: Mapping[str, PartitionSpec] | None = None,
    on_unknown: str = "error",
) -> Prepared:
    """Trace a model to serve and price its space.

    Args:
      degrees: None for all that the cluster has.
      engine: name of the profile of what serves it; None for the geometric middle.
      max_stages: pipeline stages at most; None for as many as divide the layers.

    Raises:
      ValueError: if `max_stages` is below 1.
      NoFeasiblePlanError: if weights and one request do not fit.
    """
    if max_stages is not None and max_stages < 1:
        raise ValueError(f"max_stages must be at least 1, got {max_stages}")
    phases = ("prefill",) if workload.prefill_only else ("prefill", "decode")
    traced = trace_problem(problem, phases, TRACED_BATCH, on_unknown)
    graphs = linked(traced, problem.dim_names)
    layers = num_layers(graphs[phases[-1]])
    found = degrees or [
        d
        for d in enumerate_degrees(cluster, num_layers=layers)
        if max_stages is None or d.stages <= max_stages
    ]
    space = pin(build_space(graphs, found), pins or {})
    check_fit(graphs, space, cluster, layers, problem.name)
    top = most_sequences(graphs[phases[-1]], cluster)
    batches = {"prefill": _prompt_grid(space, workload, top)}
    if not workload.prefill_only:
        batches["decode"] = _decode_grid(space, workload, top)
    pricing = serving_pricing(problem, workload, cluster, engine)
    tables = tables_of(graphs, space, pricing, batches, TRACED_BATCH)
    evaluator = TableEvaluator(tables=tables, workload=workload)
    return Prepared(traced=traced, graphs=graphs, evaluator=evaluator)


def prepare_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cluster: Cluster,
    *,
    degrees: Sequence[Degrees] | None = None,
    pins: Mapping[str, PartitionSpec] | None = None,
    on_unknown: str = "error",
) -> Prepared:
    """`prepare_plain` of a function at one shape, all its arguments inputs."""
    plain = plain_function(function, args, kwargs)
    return prepare_plain(
        plain, cluster, degrees=degrees, pins=pins, on_unknown=on_unknown
    )


def prepare_plain(
    plain: PlainFunction,
    cluster: Cluster,
    *,
    degrees: Sequence[Degrees] | None = None,
    pins: Mapping[str, PartitionSpec] | None = None,
    on_unknown: str = "error",
) -> Prepared:
    """Trace a plain function and price its space; one stage, one batch.

    The shape with most bytes of arguments is the last phase: its memory counts.

    Raises:
      ValueError: if there is nothing to shard, or arguments are named that are none.
    """
    traced = plain.traced(on_unknown)
    state = state_pairs(plain, traced[STEP])
    graphs = link_shapes(
        {phase: with_state(own.graph, state) for phase, own in traced.items()}
    )
    if not graphs[STEP].nodes:
        raise ValueError(
            "the function has no array to shard: it only touches scalars. Give it "
            "arguments of the shapes that it runs at"
        )
    order = sorted(graphs, key=lambda phase: _argument_bytes(graphs[phase]))
    graphs = {phase: graphs[phase] for phase in order}
    found = degrees or enumerate_degrees(cluster)
    space = build_space(graphs, found)
    pairs = [
        ((phase, a), (phase, b))
        for phase in graphs
        for a, b in tied_nodes(traced[phase].graph, state)
    ]
    space = pin(_with_ties(space, pairs), pins or {})
    batches = {
        phase: np.ones((len(space.degrees), 1), np.int64) for phase in space.graphs
    }
    tables = tables_of(graphs, space, Pricing(cluster=cluster), batches, 1)
    evaluator = TableEvaluator(tables=tables, workload=None)
    return Prepared(traced=traced, graphs=graphs, evaluator=evaluator, state=state)


def _with_ties(space: Space, pairs: Sequence[tuple[Member, Member]]) -> Space:
    """The space in which the two nodes of every pair have one layout."""
    if not pairs:
        return space
    space = replace(space, variables=tied(space.variables, pairs))
    pinned = {
        space.first_override + variable * space.num_axes + axis: value
        for variable, axis, value in given_states(
            space.graphs, space.variables, space.degrees
        )
    }
    return replace(space, pinned=tuple(sorted(pinned.items())))


def _argument_bytes(graph: OpGraph) -> float:
    kinds = (NodeKind.PARAMETER, NodeKind.CACHE, NodeKind.INPUT)
    return sum(held_bytes(graph, kind) for kind in kinds)


def serving_pricing(
    problem: Problem, workload: Workload, cluster: Cluster, engine: str | None
) -> Pricing:
    """How a served model is priced.

    A decode step attends to what is there halfway through a request's output.

    Raises:
      ValueError: if there is no profile of that name.
    """
    return Pricing(
        cluster=cluster,
        engine=load_profile(engine or MIDDLE),
        skew=workload.routing_skew,
        one_byte=problem.one_byte,
        context=workload.input_len + workload.output_len / 2,
    )


def tables_of(
    graphs: Mapping[str, OpGraph],
    space: Space,
    pricing: Pricing,
    batches: Mapping[str, np.ndarray],
    traced_batch: int,
) -> CostTables:
    """Cost tables of traced phases; `batches` per phase, `[degrees, batches]`."""
    hubs = {
        phase: hub.index
        for phase, graph in graphs.items()
        if (hub := hub_value(graph)) is not None
    }
    return build_tables(space, pricing, batches, traced_batch, hubs)


def num_layers(graph: OpGraph) -> int:
    """Layers that pipeline stages divide: trips of the longest loop."""
    return max(op.trips for op in graph.ops)


def held_bytes(graph: OpGraph, kind: NodeKind, *, looped: bool = False) -> float:
    """Bytes of all arguments of a kind; `looped`: of those in the layer stack only."""
    return sum(
        leaf.array.nbytes
        for node in graph.values
        if node.kind is kind and (not looped or is_looped(node, graph))
        for leaf in node.leaves
        if not leaf.is_output
    )


def most_sequences(graph: OpGraph, cluster: Cluster) -> int:
    """Sequences whose caches could fill what the weights leave, over all GPUs."""
    weights = held_bytes(graph, NodeKind.PARAMETER)
    room = cluster.num_gpus * cluster.usable_bytes - weights
    per_sequence = held_bytes(graph, NodeKind.CACHE) / TRACED_BATCH
    most = room / per_sequence if per_sequence else 4096 * cluster.num_gpus
    return int(max(1, min(most, 4096 * cluster.num_gpus)))


def _decode_grid(space: Space, workload: Workload, top: int) -> np.ndarray:
    if workload.concurrency is not None:
        return np.array(
            [[math.ceil(workload.concurrency / d.stages)] for d in space.degrees]
        )
    return padded(
        [batch_ladder(d.mesh_size, max(1, top // d.stages)) for d in space.degrees]
    )


def _prompt_grid(space: Space, workload: Workload, top: int) -> np.ndarray:
    rows = []
    for d in space.degrees:
        limit = max(1, top // d.stages)
        if workload.prefill_only and workload.concurrency is not None:
            rows.append([math.ceil(workload.concurrency / d.stages)])
            continue
        rows.append(prompt_rungs(d.mesh_size, limit))
    return padded(rows)


def prompt_rungs(mesh_size: int, limit: int) -> list[int]:
    """Prompts per call to try: powers of two and small multiples of the mesh.

    >>> prompt_rungs(6, 100)
    [1, 2, 4, 6, 8, 12, 16, 18]
    """
    powers = {2**i for i in range(1 + int(math.log2(4 * mesh_size)))}
    meshes = {mesh_size * k for k in (1, 2, 3)}
    return sorted(n for n in powers | meshes if n <= limit)


def _least_bytes(space: Space, graph: OpGraph, kind: NodeKind) -> np.ndarray:
    """Fewest bytes per GPU of weights, or of one request's cache; `[degrees]`."""
    ones = np.ones((len(space.degrees), 1), np.int64)
    stages = np.array([d.stages for d in space.degrees])
    *_, last = space.graphs
    looped, outer = np.zeros(len(stages)), [np.zeros(len(stages))]
    for number, variable in enumerate(space.variables):
        for phase, index in variable.members:
            if phase != last or variable.kind is not kind:
                continue
            node = graph.nodes[index]
            states = member_states(space, number, node)
            sharding = shard(node, states, space.degrees, ones, TRACED_BATCH)
            legal = space.repaired[number] == np.arange(len(states))
            legal = legal & sharding.batch_legal(node.factors)[..., 0]
            nbytes = leaf_bytes(node, sharding)[..., 0]
            least = np.where(legal, nbytes, np.inf).min(1)
            if is_looped(node, graph) or kind is NodeKind.CACHE:
                looped = looped + least
            else:
                outer.append(least)
    outside = np.where(stages > 1, np.max(outer, 0), np.sum(outer, 0))
    return looped / stages + outside


def least_needed(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Fewest bytes per GPU of weights, and of weights and one request's cache.

    Both `[degrees]`, in the last phase.
    """
    graph = list(space.graphs.values())[-1]
    weights = _least_bytes(space, graph, NodeKind.PARAMETER)
    return weights, weights + _least_bytes(space, graph, NodeKind.CACHE)


def spread_bytes(graph: OpGraph) -> float:
    """Bytes of weights and one cache that more GPUs can share, over all GPUs."""
    cache = held_bytes(graph, NodeKind.CACHE) / TRACED_BATCH
    return cache + held_bytes(graph, NodeKind.PARAMETER, looped=True)


def check_fit(
    graphs: Mapping[str, OpGraph],
    space: Space,
    cluster: Cluster,
    layers: int,
    name: str,
) -> None:
    """Refuse a problem whose weights and one request's cache cannot fit.

    Raises:
      NoFeasiblePlanError: naming the term that binds and the smallest cluster of the
        same GPUs that would do.
    """

    def least(space: Space) -> tuple[float, float]:
        weights, total = least_needed(space)
        best = int(total.argmin())
        return float(weights[best]), float(total[best])

    weights, total = least(space)
    usable = cluster.usable_bytes
    if total <= usable:
        return
    term = "weights need" if weights > usable else "KV cache of one request needs"
    amount = weights if weights > usable else total - weights
    where = "" if weights > usable else f" beside {gigabytes(weights)} of weights"
    remedy = f"no cluster of these GPUs up to {MAX_NODES} nodes would do"
    spread = spread_bytes(list(graphs.values())[-1])
    for larger in _larger(cluster):
        if spread > larger.num_gpus * usable:
            continue  # not even in equal parts
        other = build_space(graphs, enumerate_degrees(larger, num_layers=layers))
        if least(other)[1] <= usable:
            remedy = f"the smallest cluster of these GPUs that would do is {larger}"
            break
    raise NoFeasiblePlanError(
        f"{name} does not fit {cluster}: the {term} {gigabytes(amount)} per GPU at "
        f"least{where}, of {gigabytes(usable)} usable; {remedy}"
    )


def _larger(cluster: Cluster):
    for gpus in range(cluster.gpus_per_node + 1, 9):
        if cluster.nodes == 1:
            yield cluster.resized(1, gpus)
    gpus = max(cluster.gpus_per_node, 8)
    for nodes in range(max(2, cluster.nodes), MAX_NODES + 1):
        if nodes * gpus > cluster.num_gpus:
            yield cluster.resized(nodes, gpus)
