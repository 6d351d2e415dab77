"""The zoo's decoders as graphs: arithmetic in closed form, groups, shared factors."""

import dataclasses

import pytest

from lts.graph import NodeKind, OpGraph
from lts.models import Decoder, DecoderConfig, dense_decoder, load
from lts.models.architecture import DenseFfn, GroupedAttention
from lts.problem import TRACED_BATCH, linked, trace_problem, zoo_problem
from lts.tracing.labels import dim_names, hub_value
from lts.workload import Workload

WORKLOAD = Workload(input_len=24, output_len=8)
TINY = dense_decoder(
    name="tiny",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
)


def graphs_of(model: Decoder, workload: Workload = WORKLOAD) -> dict[str, OpGraph]:
    problem = zoo_problem(model, workload)
    traced = trace_problem(problem, ("prefill", "decode"), TRACED_BATCH)
    return linked(traced, problem.dim_names)


@pytest.fixture(scope="module")
def tiny() -> dict[str, OpGraph]:
    return graphs_of(Decoder(config=TINY))


@pytest.fixture(scope="module")
def unrolled() -> dict[str, OpGraph]:
    return graphs_of(Decoder(config=TINY, layers="unrolled"))


def parts(config: DecoderConfig) -> tuple[GroupedAttention, DenseFfn]:
    """Attention and feed-forward part of every layer of a dense decoder."""
    (layer,) = set(config.layers)
    assert isinstance(layer.attention, GroupedAttention)
    assert isinstance(layer.ffn, DenseFfn)
    return layer.attention, layer.ffn


def layer_products(config: DecoderConfig) -> int:
    """Multiplications per token in one layer's matrices."""
    attention, ffn = parts(config)
    d, k = config.hidden_size, attention.head_dim
    heads, kv = attention.num_heads, attention.num_kv_heads
    return 2 * d * heads * k + 2 * d * kv * k + 3 * d * ffn.size


def expected_flops(config: DecoderConfig, new: int, seen: int) -> float:
    """A step of `new` tokens per sequence over `seen` positions; logits of the last."""
    layers, (attention, _) = config.num_hidden_layers, parts(config)
    matrices = 2 * new * layers * layer_products(config)
    scores = 4 * new * seen * attention.num_heads * attention.head_dim * layers
    logits = 2 * config.hidden_size * config.vocab_size
    return TRACED_BATCH * (matrices + scores + logits)


def test_prefill_arithmetic_is_two_per_parameter_and_token(tiny) -> None:
    assert tiny["prefill"].flops == expected_flops(TINY, 24, 24)


def test_decode_arithmetic_reads_the_whole_cache(tiny) -> None:
    assert tiny["decode"].flops == expected_flops(TINY, 1, 32)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-32b"])
def test_arithmetic_of_published_models(name: str) -> None:
    model = load(name)
    graphs = graphs_of(model, Workload(input_len=128, output_len=64))
    assert graphs["prefill"].flops == expected_flops(model.config, 128, 128)
    assert graphs["decode"].flops == expected_flops(model.config, 1, 192)


def test_unrolled_layers_have_the_same_arithmetic_and_bytes(tiny, unrolled) -> None:
    for phase in tiny:
        assert unrolled[phase].flops == tiny[phase].flops
        for kind in (NodeKind.PARAMETER, NodeKind.CACHE):
            totals = [
                sum(
                    leaf.array.nbytes
                    for node in graph.values
                    if node.kind is kind
                    for leaf in node.leaves
                    if not leaf.is_output
                )
                for graph in (tiny[phase], unrolled[phase])
            ]
            assert totals[0] == totals[1] > 0


def test_unrolled_kernels_read_and_write_what_scanned_ones_do(tiny, unrolled) -> None:
    def moved(graph: OpGraph) -> float:
        return sum(
            kernel.trips * array.nbytes
            for node in graph.values
            for kernel in node.kernels
            for array, _ in kernel.arrays
        )

    for phase in tiny:
        # The unrolled residual fuses across layers, so it is written less often.
        assert 0.8 < moved(unrolled[phase]) / moved(tiny[phase]) <= 1


def test_weights_weigh_what_the_parameters_count(tiny) -> None:
    model = Decoder(config=TINY)
    for graph in tiny.values():
        nbytes = sum(
            leaf.array.nbytes
            for node in graph.values
            if node.kind is NodeKind.PARAMETER
            for leaf in node.leaves
        )
        assert nbytes == 2 * model.num_params


def test_groups_are_embedding_attention_mlp_and_unembedding(tiny) -> None:
    for graph in tiny.values():
        found = {
            name: [graph.nodes[op].name for op in ops] for name, ops in graph.groups
        }
        assert list(found) == ["embed", "attention", "mlp", "unembed"]
        assert found["mlp"] == ["mlp/gate", "mlp/up", "mlp/down"]
        assert found["attention"] == [
            f"attention/{name}"
            for name in ("query", "key", "value", "scores", "attend", "out")
        ]


def test_every_op_is_in_one_group(tiny, unrolled) -> None:
    for graph in (*tiny.values(), *unrolled.values()):
        grouped = [op for _, ops in graph.groups for op in ops]
        assert sorted(grouped) == [op.index for op in graph.ops]


def test_the_residual_stream_is_the_hub(tiny) -> None:
    names = {"prefill": ["batch", "sequence", "hidden"], "decode": ["batch", "hidden"]}
    for phase, graph in tiny.items():
        hub = hub_value(graph)
        assert hub is not None
        assert [factor.name for factor in hub.factors] == names[phase]
        labels = {factor.label for factor in hub.factors}
        assert labels <= graph.hub_labels


def test_factors_are_named_and_shared_by_both_phases(tiny) -> None:
    prefill, decode = tiny["prefill"], tiny["decode"]
    for name in ("attention/query", "attention/out", "mlp/down", "unembed"):
        both = [
            {f.name: f.label for f in graph.node(name).factors}
            for graph in (prefill, decode)
        ]
        common = both[0].keys() & both[1].keys()
        assert common >= {"batch", "hidden"}
        assert all(both[0][key] == both[1][key] for key in common)


def test_only_the_batch_factor_scales_with_the_batch(tiny) -> None:
    for graph in tiny.values():
        for node in graph.nodes:
            for factor in node.factors:
                assert factor.batched == (factor.name == "batch")
                if factor.batched:
                    assert (factor.size, factor.units) == (TRACED_BATCH, TRACED_BATCH)


def test_heads_cannot_be_cut_by_rotary_but_values_can(tiny) -> None:
    decode = tiny["decode"]
    assert "head" not in {f.name for f in decode.node("attention/query").factors}
    assert "value_head" in {f.name for f in decode.node("attention/value").factors}


def test_caches_are_updated_in_place_and_keep_time_shardable(tiny) -> None:
    decode = tiny["decode"]
    for name in ("cache/key", "cache/value"):
        cache = decode.node(name)
        assert cache.kind is NodeKind.CACHE
        assert [leaf.is_output for leaf in cache.leaves] == [False, True]
        assert "cache_time" in {factor.name for factor in cache.factors}


def test_names_of_dims_can_be_given_back_as_hints(tiny) -> None:
    names = dim_names(tiny)
    assert names["params/layers/gate"] == ("", "hidden", "ffn")
    assert names["tokens"] == ("batch", "sequence")


def test_nothing_is_replicated_or_noted(tiny, unrolled) -> None:
    for graph in (*tiny.values(), *unrolled.values()):
        assert graph.notes == ()
        assert graph.replicated_bytes == 0


def test_tied_embeddings_are_one_parameter_with_two_readers() -> None:
    tied = dataclasses.replace(TINY, tie_word_embeddings=True)
    graph = graphs_of(Decoder(config=tied))["decode"]
    table = graph.node("params/embed")
    readers = [
        graph.nodes[e.target].name for e in graph.edges if e.source == table.index
    ]
    assert readers == ["embed", "unembed"]
    vocab = {f.name: f.label for f in table.factors}["vocab"]
    logits = {f.label: f.reduction for f in graph.node("unembed").factors}
    assert logits[vocab] is False
