"""Small problems to search, without the `lts.search` that sits above the methods."""

import functools

import numpy as np

from lts.cost.pricing import Pricing
from lts.cost.tables import batch_ladder, build_tables, padded
from lts.evaluate.tables import TableEvaluator
from lts.graph import NodeKind, OpGraph
from lts.hardware import Cluster
from lts.mesh import enumerate_degrees
from lts.models import Decoder, read_config
from lts.space import build_space
from lts.tracing import link_phases, trace, trace_program
from lts.tracing.labels import hub_value
from lts.workload import Workload

TINY = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def _kind(path: str) -> NodeKind:
    kinds = {"params": NodeKind.PARAMETER, "cache": NodeKind.CACHE}
    return kinds.get(path.split("/")[0], NodeKind.INPUT)


def serving_evaluator(
    model: Decoder, cluster: Cluster, workload: Workload
) -> TableEvaluator:
    """Tables of a decoder served colocated."""
    graphs: dict[str, OpGraph] = {}
    for phase in ("prefill", "decode"):
        args = model.args(
            phase, 32, input_len=workload.input_len, cache_len=workload.context_len
        )
        graphs[phase] = trace_program(
            getattr(model, phase),
            args,
            names=("params", "cache", "tokens", "position"),
            kinds=_kind,
            batch_dims={"cache/key": (1,), "cache/value": (1,), "tokens": (0,)},
        ).graph
    graphs = link_phases(graphs)
    layers = model.config.num_hidden_layers
    degrees = enumerate_degrees(cluster, num_layers=layers)
    batches = {
        "prefill": padded([sorted({1, 2, 4, 8, d.mesh_size}) for d in degrees]),
        "decode": padded([batch_ladder(d.mesh_size, 256) for d in degrees]),
    }
    hubs = {}
    for phase, graph in graphs.items():
        hub = hub_value(graph)
        assert hub is not None
        hubs[phase] = hub.index
    pricing = Pricing(cluster=cluster)
    tables = build_tables(build_space(graphs, degrees), pricing, batches, 32, hubs)
    return TableEvaluator(tables=tables, workload=workload)


def plain_evaluator(function, args, cluster: Cluster) -> TableEvaluator:
    """Tables of a plain function."""
    graphs = {"step": trace(function, *args)}
    degrees = enumerate_degrees(cluster)
    one = {"step": np.ones((len(degrees), 1), np.int64)}
    pricing = Pricing(cluster=cluster)
    tables = build_tables(build_space(graphs, degrees), pricing, one, 1, {})
    return TableEvaluator(tables=tables, workload=None)


@functools.cache
def small_decoder() -> TableEvaluator:
    """A small decoder on four GPUs of one node; few random candidates are feasible."""
    workload = Workload(input_len=512, output_len=64, ttft_ms=20, tpot_ms=0.4)
    model = Decoder(config=read_config(TINY, "tiny"))
    return serving_evaluator(model, Cluster.parse("h100:1x4"), workload)
