"""Graphs of decoders with experts, latents, windows and blocks: factors, arithmetic."""

import pytest

from lts.graph import Node, NodeKind, OpGraph
from lts.models import Decoder, DecoderConfig
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    GroupedAttention,
    LatentAttention,
    Layer,
    Quantization,
    Rope,
    Routing,
)
from lts.problem import TRACED_BATCH, linked, trace_problem, zoo_problem
from lts.workload import Workload

PROMPT, CONTEXT = 24, 40
LATENT = LatentAttention(
    num_heads=6,
    query_rank=48,
    kv_rank=64,
    nope_dim=16,
    value_dim=20,
    rope=Rope(size=8),
)
WINDOW = GroupedAttention(
    num_heads=8,
    num_kv_heads=2,
    head_dim=16,
    rope=Rope(size=8),
    window=10,
    qk_norm="layer",
)
ROUTING = Routing(scores="sigmoid", biased=True, groups=4, top_groups=2)
EXPERTS = ExpertFfn(num_experts=28, top_k=4, size=112, shared_size=144, routing=ROUTING)


def graphs_of(*layers: Layer, **switches) -> dict[str, OpGraph]:
    config = DecoderConfig(
        name="tiny",
        vocab_size=96,
        hidden_size=128,
        layers=layers,
        max_position_embeddings=128,
        **switches,
    )
    problem = zoo_problem(Decoder(config=config), Workload(PROMPT, CONTEXT - PROMPT))
    traced = trace_problem(problem, ("prefill", "decode"), TRACED_BATCH)
    return linked(traced, problem.dim_names)


@pytest.fixture(scope="module")
def latent() -> dict[str, OpGraph]:
    first = Layer(attention=LATENT, ffn=DenseFfn(size=176))
    return graphs_of(first, *[Layer(attention=LATENT, ffn=EXPERTS)] * 3)


@pytest.fixture(scope="module")
def windowed() -> dict[str, OpGraph]:
    return graphs_of(*[Layer(attention=WINDOW, ffn=DenseFfn(size=176))] * 2)


def names(node: Node) -> list[str]:
    return [factor.name for factor in node.factors]


def test_nothing_is_replicated_or_noted(latent, windowed) -> None:
    for graph in (*latent.values(), *windowed.values()):
        assert graph.notes == ()
        assert graph.replicated_bytes == 0


def test_tokens_stay_shardable_from_the_router_to_the_experts(latent) -> None:
    graph = latent["prefill"]
    for name in ("router", "router/group_scores", "router/groups", "router/top_k"):
        assert {"batch", "sequence"} <= set(names(graph.node(f"layers1/{name}")))
    weight, expert = graph.node("layers1/experts").operands[1:3]
    for operand in (weight, expert):
        assert names(graph.nodes[operand.value])[:2] == ["batch", "sequence"]
    assert {"batch", "sequence", "experts", "expert_ffn"} <= set(
        names(graph.node("layers1/experts"))
    )


def test_experts_of_the_router_are_another_index_than_those_of_the_weights(
    latent,
) -> None:
    for graph in latent.values():
        routed = {
            factor.label
            for node in graph.nodes
            for factor in node.factors
            if factor.name == "routed"
        }
        (experts,) = [
            factor.label
            for factor in graph.node("layers1/experts").factors
            if factor.name == "experts"
        ]
        assert routed and experts not in routed


@pytest.mark.parametrize(
    ("path", "dims"),
    [
        ("params/layers0/query_down", ["hidden", "query_rank"]),
        ("params/layers0/query_up", ["query_rank", "heads", "nope"]),
        ("params/layers0/key_rope", ["hidden", "rope"]),
        ("params/layers0/value_up", ["latent", "heads", "value_head"]),
        ("params/layers0/gate", ["hidden", "ffn"]),
        ("params/layers1/router", ["hidden", "routed"]),
        ("params/layers1/expert_down", ["experts", "expert_ffn", "hidden"]),
        ("params/layers1/shared_up", ["hidden", "shared_ffn"]),
        ("cache/layers0/latent", ["batch", "cache_time", "latent"]),
    ],
)
def test_dims_of_weights_and_caches_have_their_names(latent, path, dims) -> None:
    assert names(latent["decode"].node(path)) == dims


def latent_products(new: int, seen: int, *, absorbed: bool) -> int:
    """Multiplications per sequence of latent attention over `seen` positions."""
    d, h, r, c = 128, LATENT.num_heads, 48, LATENT.kv_rank
    n, v, k = LATENT.nope_dim, LATENT.value_dim, LATENT.rope.size
    own = d * r + r * h * (n + k) + d * (c + k) + h * v * d + c * h * (n + v)
    pairs = h * new * seen * (2 * c + k if absorbed else n + k + v)
    return new * own + pairs


def test_arithmetic_of_latents_experts_and_first_dense_layer(latent) -> None:
    d = 128
    dense = 3 * d * 176
    experts = d * 28 + 3 * d * (4 * 112 + 144)
    for phase, new, seen in (("prefill", PROMPT, PROMPT), ("decode", 1, CONTEXT)):
        attention = latent_products(new, seen, absorbed=phase == "decode")
        products = 4 * attention + new * (dense + 3 * experts) + d * 96
        assert latent[phase].flops == 2 * TRACED_BATCH * products


def test_attention_reads_no_more_than_the_window_in_decode(windowed) -> None:
    cache = windowed["decode"].node("cache/key")
    assert cache.kind is NodeKind.CACHE
    sizes = {factor.name: factor.size for factor in cache.factors}
    assert sizes == {"batch": TRACED_BATCH, "kv_heads": 2, "cache_time": 10, "head": 16}
    scores = windowed["decode"].node("attention/scores")
    assert scores.flops == 2 * TRACED_BATCH * 8 * 10 * 16


def test_prompts_longer_than_the_window_stay_shardable(windowed) -> None:
    graph = windowed["prefill"]
    for name in ("query", "key", "value", "write_key", "write_value"):
        factors = names(graph.node(f"attention/{name}"))
        assert {"batch", "sequence", "kv_heads"} <= set(factors)


def test_blocks_limit_how_often_a_quantized_dim_can_be_cut() -> None:
    form = Quantization(dtype="float8_e4m3fn", block=(16, 8))
    graphs = graphs_of(*[Layer(attention=LATENT, ffn=EXPERTS)] * 2, quantization=form)
    for graph in graphs.values():
        assert graph.notes == ()
        units = {f.name: f.units for f in graph.node("experts").factors}
        # Experts are cut one by one, their hidden dim of 112 in blocks of 16.
        assert units["experts"] == 28 and units["expert_ffn"] == 7
        units = {f.name: f.units for f in graph.node("attention/out").factors}
        # Head size 20 has blocks of 4, its greatest common divisor with 16.
        assert units["heads"] == 6 and units["value_head"] == 5
        assert units["hidden"] == 16
