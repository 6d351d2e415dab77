"""A slow, plain-Python price of one candidate, to hold the table evaluator against.

Written from the graph, the cluster and `collective_time_s` alone: no tables, no codes,
no vectors. It reads an `Assignment` by names.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lts.assignment import Assignment
from lts.cost.collective import collective_time_s
from lts.cost.operators.decode_attention import decode_attention_time_s
from lts.cost.operators.gemm import gemm_time_s
from lts.cost.operators.prefill_attention import prefill_attention_time_s
from lts.cost.reshards import KNOTS
from lts.cost.tables import CostTables
from lts.graph import Array, Edge, Node, NodeKind, Operand, OpGraph
from lts.hardware import Cluster
from lts.tracing.labels import hub_value
from lts.workload import Workload
from tests.hop_oracle import steps

IMPOSSIBLE = math.inf


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a candidate reaches at its best batch; objective None if infeasible."""

    objective: float | None
    ttft_s: float | None
    tpot_s: float | None
    step_time_s: float | None
    peak_bytes: float | None
    concurrency: int | None


class Pricer:
    """Prices of one assignment."""

    def __init__(self, tables: CostTables, assignment: Assignment, traced_batch: int):
        self.tables = tables
        self.cluster: Cluster = tables.cluster
        self.assignment = assignment
        self.axes = assignment.degrees.axes
        self.traced_batch = traced_batch

    def state(self, phase: str, node: Node, axis: int) -> int | None:
        """Factor that an axis shards, or None."""
        name = self.assignment.states[phase][node.name][axis]
        names = [factor.name for factor in node.factors]
        return None if name is None else names.index(name)

    def ways(self, phase: str, node: Node, factor: int) -> int:
        """Shards of a factor."""
        return math.prod(
            axis.size
            for i, axis in enumerate(self.axes)
            if self.state(phase, node, i) == factor
        )

    def local(self, phase: str, node: Node, array: Array, factors, batch: int) -> float:
        """Bytes of one device's part of an array."""
        nbytes = float(array.nbytes)
        if array.batch_power:
            nbytes *= batch / self.traced_batch
        for factor in factors:
            if factor is not None:
                nbytes /= self.ways(phase, node, factor)
        return nbytes

    def collective(self, kind: str, axes: list[int], nbytes: float) -> float:
        """Seconds of a collective over some axes."""
        inside = math.prod(self.axes[i].size for i in axes if self.axes[i].inside)
        across = math.prod(self.axes[i].size for i in axes if not self.axes[i].inside)
        if inside * across == 1:
            return 0.0
        sizes = np.array(inside), np.array(across)
        return float(
            collective_time_s(kind, np.array(nbytes), *sizes, self.tables.pricing)
        )

    def node_time(self, phase: str, node: Node, batch: int) -> float:
        """Seconds of a node."""
        chip = self.cluster.chip
        bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
        for i, factor in enumerate(node.factors):
            if factor.batched:
                per_shard = batch * factor.units / self.traced_batch
                ways = self.ways(phase, node, i)
                if ways > 1 and per_shard % ways:
                    return IMPOSSIBLE
        total = 0.0
        if node.is_op:
            arrays = [*node.operands, *node.results]
            moved = sum(
                o.passes * self.local(phase, node, o.array, o.factors, batch)
                for o in arrays
                if o.streamed
            )
            total += self.op_time(phase, node, batch, moved) * node.trips
        for kernel in node.kernels:
            moved = sum(self.local(phase, node, *pair, batch) for pair in kernel.arrays)
            total += (moved / bandwidth + self.tables.pricing.launch_s) * kernel.trips
        for reduction in node.reductions:
            axes = [
                i
                for i in range(len(self.axes))
                if self.state(phase, node, i) in reduction.reduced
            ]
            kind = "all_gather" if reduction.gathered else "all_reduce"
            for array in reduction.gathered or (reduction.array,):
                nbytes = self.local(phase, node, array, reduction.factors, batch)
                total += reduction.trips * self.collective(kind, axes, nbytes)
        return total

    def op_time(self, phase: str, node: Node, batch: int, moved: float) -> float:
        """Seconds of one execution, by the operator that it is."""
        chip, prices = self.cluster.chip, self.tables.pricing
        arrays = [*node.operands, *node.results]
        flops = node.flops
        if any(o.array.batch_power for o in arrays):
            flops *= batch / self.traced_batch
        for i in range(len(node.factors)):
            flops /= self.ways(phase, node, i)

        def elements(operand: Operand) -> float:
            array = operand.array
            local = self.local(phase, node, array, operand.factors, batch)
            return local / array.itemsize

        if node.attention is not None:
            return self.attention_time(phase, node, batch, flops, elements)
        if node.primitive == "dot_general":
            left, right = node.operands
            kept = left if left.array.batch_power < right.array.batch_power else right
            k = flops / 2 / elements(node.results[0])
            m, n = flops / 2 / elements(kept), elements(kept) / k * node.merged
            time = gemm_time_s(
                np.array(m),
                np.array(n),
                np.array(k),
                form="bfloat16",
                values=prices.values("gemm/bfloat16"),
                chip=chip,
            )
            least = max(moved - chip.l2_bytes, 0) / chip.hbm_bandwidth_bytes_per_s
            return max(float(time) * prices.factor("gemm") / node.merged, least)
        bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
        math_s = 0.0
        if flops:
            math_s = flops / (chip.peak(node.dtype) * chip.matmul_efficiency)
        return max(math_s, moved / bandwidth) + prices.launch_s

    def attention_time(
        self,
        phase: str,
        node: Node,
        batch: int,
        flops: float,
        elements: Callable[[Operand], float],
    ) -> float:
        """Seconds of a contraction of an attention over grouped heads."""
        mark, prices = node.attention, self.tables.pricing
        assert mark is not None and not mark.latent
        arrays = [*node.operands, *node.results]
        scores = next(o for o in arrays if not o.streamed)
        width = flops / 2 / elements(scores)
        sequences = 1.0
        for i, factor in enumerate(node.factors):
            if factor.batched:
                sequences *= batch / self.ways(phase, node, i)

        def local(size: int, factor: int | None) -> float:
            return size if factor is None else size / self.ways(phase, node, factor)

        queries = local(mark.queries, mark.query_factor)
        keys = local(mark.keys, mark.key_factor)
        heads = elements(arrays[mark.query_operand]) / width / sequences / queries
        kept = elements(arrays[mark.key_operand]) / width / sequences / keys
        heads = max(heads, 1.0)
        sizes = [heads, min(max(kept, 1.0), heads), mark.head_dim, mark.window, 2.0]
        chip = self.cluster.chip
        assert prices.engine is not None
        if mark.queries == 1:
            sizes = [sequences, min(keys, prices.context), *sizes]
            model, key = decode_attention_time_s, "decode_attention/bfloat16"
        else:
            assert mark.causal
            sizes = [sequences, queries, keys, *sizes]
            model, key = prefill_attention_time_s, "prefill_attention/bfloat16"
        arguments = [np.array(size, float) for size in sizes]
        time = model(*arguments, values=prices.values(key), chip=chip)
        return mark.share * float(time) * prices.factor("attention")

    def hosted(self, phase: str, node: Node, batch: int) -> float:
        """Seconds of the host for sequences whose cache a value is."""
        engine, graph = self.tables.pricing.engine, self.tables.phases[phase].graph
        if engine is None or phase != "decode" or node.kind is not NodeKind.CACHE:
            return 0.0
        caches = [value for value in graph.values if value.kind is NodeKind.CACHE]
        for i, factor in enumerate(node.factors):
            if factor.batched:
                batch /= self.ways(phase, node, i)
        return engine.sequence_s * batch / len(caches)

    def layout(self, phase: str, graph: OpGraph, edge: Edge, at_source: bool):
        """Per axis: the dim of the array that it shards, "partial" or None."""
        node = graph.nodes[edge.source if at_source else edge.target]
        factors = edge.source_factors if at_source else edge.target_factors
        found = []
        for axis in range(len(self.axes)):
            factor = self.state(phase, node, axis)
            if factor is None or self.axes[axis].size == 1:
                found.append(None)
            elif factor in factors:
                found.append(factors.index(factor))
            else:
                summed = at_source and node.factors[factor].reduction
                found.append("partial" if summed else None)
        return found

    def edge_time(self, source: list, target: list, edge: Edge, batch: int) -> float:
        """Seconds of a reshard, step by step, on a line between two sizes."""
        nbytes = float(edge.array.nbytes)
        if edge.array.batch_power:
            nbytes *= batch / self.traced_batch
        below = KNOTS[KNOTS <= max(nbytes, KNOTS[0])][-1]
        above = KNOTS[KNOTS > below][0]
        low, high = (self.steps_time(source, target, edge, b) for b in (below, above))
        share = max(nbytes - below, 0.0) / (above - below)
        return (low + share * (high - low)) * edge.trips

    def steps_time(self, source: list, target: list, edge: Edge, nbytes: float):
        """Seconds of the steps of one reshard of `nbytes`."""
        total, chip = 0.0, self.cluster.chip
        sizes = [axis.size for axis in self.axes]
        for kind, axes, part in steps(source, target, len(edge.array.shape), sizes):
            if kind == "slice":
                bandwidth = chip.hbm_bandwidth_bytes_per_s * chip.hbm_efficiency
                total += self.tables.pricing.launch_s + 2 * part * nbytes / bandwidth
            else:
                total += self.collective(kind, list(axes), part * nbytes)
        return total

    def phase(self, phase: str, batch: int) -> tuple[float, float]:
        """Seconds and bytes of activations of one call."""
        graph = self.tables.phases[phase].graph
        total = sum(
            self.node_time(phase, node, batch) + self.hosted(phase, node, batch)
            for node in graph.nodes
        )
        seen = []
        for edge in graph.edges:
            source = self.layout(phase, graph, edge, True)
            target = self.layout(phase, graph, edge, False)
            reshard = (edge.source, edge.tensor, target)
            if source != target and reshard not in seen:
                seen.append(reshard)
                total += self.edge_time(source, target, edge, batch)
        peak = self.lying(phase, graph, batch)
        hub = hub_value(graph)
        if hub is not None and hub.array is not None:
            stream = self.local(phase, hub, hub.array, hub.array_factors, batch)
            degrees = self.assignment.degrees
            if degrees.stages > 1:
                peak += stream
                pair = (2, 1) if degrees.stages_inside else (1, 2)
                hand_over = collective_time_s(
                    "collective_permute",
                    np.array(stream),
                    np.array(pair[0]),
                    np.array(pair[1]),
                    self.tables.pricing,
                )
                total += degrees.stages * float(hand_over)
        return total, peak

    def lying(self, phase: str, graph: OpGraph, batch: int) -> float:
        """Most bytes of arrays on the way that lie in memory at once."""
        engine = self.tables.pricing.engine is not None
        scores = {held.node for held in graph.held if held.is_score}
        found = [0.0]
        for moment in graph.moments:
            total = 0.0
            for number in moment.held:
                held = graph.held[number]
                if held.is_result if not engine else held.is_copy or held.is_score:
                    continue
                node = graph.nodes[held.node]
                total += self.local(phase, node, held.array, held.factors, batch)
            for number in moment.moved:
                edge = graph.edges[number]
                if not (engine and scores & {edge.source, edge.target}):
                    total += self.moved(phase, graph, edge, batch)
            found.append(total)
        return max(found)

    def moved(self, phase: str, graph: OpGraph, edge: Edge, batch: int) -> float:
        """Largest part that a step of a reshard takes (of an op's result) or gives."""
        source = self.layout(phase, graph, edge, True)
        target = self.layout(phase, graph, edge, False)
        sizes, parts = [axis.size for axis in self.axes], [0.0]
        for kind, axes, part in steps(source, target, len(edge.array.shape), sizes):
            ways = math.prod(sizes[i] for i in axes)
            grown = {"all_gather": ways, "reduce_scatter": 1 / ways}.get(kind, 1.0)
            taken, given = part, part * grown
            if kind == "slice":  # `steps` has the part that it leaves
                taken = part * ways
            parts.append(taken if graph.nodes[edge.source].is_op else given)
        scale = batch / self.traced_batch if edge.array.batch_power else 1.0
        return max(parts) * edge.array.nbytes * scale

    def served(self, phase: str, batch: int) -> tuple[float, float]:
        """`phase`, with what the engine adds to a step."""
        engine = self.tables.pricing.engine
        assert engine is not None
        time_s, peak = self.phase(phase, batch)
        layers = sum(
            op.trips * op.attention.share
            for op in self.tables.phases[phase].graph.ops
            if op.attention is not None
        )
        time_s += engine.layer_s * layers
        if phase == "prefill":
            return engine.prefill * (time_s + engine.prompt_s * batch), peak
        stages = self.assignment.degrees.stages
        passed_on = engine.handover_s * batch * stages * (1 - 1 / stages)
        return time_s + engine.step_s + passed_on, peak

    def held(self, kinds: tuple[NodeKind, ...], phase: str) -> dict[str, float]:
        """Bytes per GPU of arguments of some kinds, by value, at the traced batch."""
        graph, found = self.tables.phases[phase].graph, {}
        for node in graph.values:
            if node.kind in kinds:
                found[node.name] = sum(
                    self.local(phase, node, leaf.array, leaf.factors, self.traced_batch)
                    for leaf in node.leaves
                    if not leaf.is_output
                )
        return found

    def weights_and_cache(self, phase: str) -> tuple[float, float]:
        """Bytes per GPU of the weights, and of one sequence's cache."""
        graph, stages = self.tables.phases[phase].graph, self.assignment.degrees.stages
        looped, outer = 0.0, []
        for name, nbytes in self.held((NodeKind.PARAMETER,), phase).items():
            index = graph.node(name).index
            trips = [e.trips for e in graph.edges if index in (e.source, e.target)]
            if max(trips, default=1) > 1:
                looped += nbytes
            else:
                outer.append(nbytes)
        cache = sum(self.held((NodeKind.CACHE,), phase).values()) / self.traced_batch
        weights = looped / stages + (max(outer) if stages > 1 else sum(outer))
        return weights, cache / stages

    def colocated(self, workload: Workload) -> Price:
        """The best pair of batches, tried one by one."""
        degrees = self.tables.space.degrees.index(self.assignment.degrees)
        stages, usable = self.assignment.degrees.stages, self.cluster.usable_bytes
        weights, cache = self.weights_and_cache("decode")
        grids = {
            p: set(t.batches[degrees].tolist()) for p, t in self.tables.phases.items()
        }
        steps = {
            phase: {batch: self.served(phase, batch) for batch in grid}
            for phase, grid in grids.items()
        }
        further = workload.output_len - 1
        best = Price(
            objective=None,
            ttft_s=None,
            tpot_s=None,
            step_time_s=None,
            peak_bytes=None,
            concurrency=None,
        )
        for per_stage, (decode_s, decode_peak) in steps["decode"].items():
            for prompts, (prefill_s, prefill_peak) in steps["prefill"].items():
                if prompts > per_stage or math.inf in (decode_s, prefill_s):
                    continue
                in_flight = per_stage * stages
                prompt_s = prefill_s / (prompts * stages)
                engine = self.tables.pricing.engine
                assert engine is not None
                tpot_s = decode_s + (in_flight - 1) / max(further, 1) * prompt_s
                cycle_s = further * decode_s + in_flight * prompt_s
                objective = in_flight * workload.output_len / cycle_s
                ttft_s = engine.host_s + engine.alone * prefill_s
                ttft_s += engine.waiting * in_flight * prompt_s
                ttft_s += engine.running * decode_s
                ttft_s += engine.saturation_s * (objective / 1e4) ** 4
                objective /= self.cluster.num_gpus
                peak = weights + cache * in_flight + max(decode_peak, prefill_peak)
                if (
                    peak > usable
                    or ttft_s > (workload.ttft_s or math.inf)
                    or tpot_s > (workload.tpot_s or math.inf)
                ):
                    continue
                if best.objective is None or objective > best.objective:
                    best = Price(
                        objective=objective,
                        ttft_s=ttft_s,
                        tpot_s=tpot_s,
                        step_time_s=decode_s,
                        peak_bytes=peak,
                        concurrency=in_flight,
                    )
        return best
