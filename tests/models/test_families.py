"""Model types read on small files: layers by value, totals as transformers counts them.

The totals were counted by transformers 5.24 on models of these files without weights
(parameters, and the router's bias, which it keeps as a buffer).
"""

from dataclasses import replace

import pytest

from lts.models import read_config
from lts.models.architecture import (
    DenseFfn,
    ExpertFfn,
    LatentAttention,
    Rope,
    Routing,
)
from lts.models.totals import active_params, num_params
from tests.models.small_configs import (
    BASE,
    DEEPSEEK,
    ERNIE,
    GLM,
    HEAD,
    LLAMA4,
    MINIMAX,
    QWEN,
    WIDE,
    attentions,
    ffns,
    read,
)


@pytest.mark.parametrize(
    ("model_type", "changes", "total"),
    [
        ("llama", {"attention_bias": True, "head_dim": 64}, 4846848),
        ("llama", {"num_key_value_heads": None}, 4447488),
        ("mistral", {"sliding_window": 4096}, 3857664),
        ("phi3", {"sliding_window": 2047}, 3857664),
        ("qwen2", {}, 3859968),
        ("qwen3", {"head_dim": 64}, 4841472),
        ("seed_oss", {"attention_bias": True}, 6816000),
        ("ernie4_5", {"head_dim": 64}, 4840704),
        ("smollm3", {}, 3857664),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}, 20385024),
        (
            "qwen2_moe",
            {
                **QWEN,
                "shared_expert_intermediate_size": 160,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [3],
            },
            4207616,
        ),
        ("qwen3_moe", {**QWEN, "head_dim": 64, "mlp_only_layers": [0, 1]}, 5044224),
        ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2}, 15665280),
        (
            "glm4_moe",
            {**GLM, "head_dim": 64, "use_qk_norm": True, "attention_bias": True},
            5836830,
        ),
        ("glm4_moe", {**GLM, "head_dim": 64}, 5831454),
        ("dots1", {**GLM, "sliding_window": None}, 4848798),
        ("minimax_m2", MINIMAX, 16650276),
        ("ernie4_5_moe", ERNIE, 4650264),
        (
            "deepseek_v2",
            {
                **DEEPSEEK,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
                "topk_method": "group_limited_greedy",
            },
            5207488,
        ),
        ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": 48}, 4400896),
        ("llama4_text", LLAMA4, 10742016),
    ],
)
def test_totals_are_those_that_transformers_counts(model_type, changes, total):
    assert num_params(read(model_type, changes)) == total


@pytest.mark.parametrize(
    ("model_type", "changes", "theta"),
    [
        ("llama", {}, 1e4),
        ("smollm3", {}, 2e6),
        ("ernie4_5", {}, 5e5),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}, 1e6),
        ("minimax_m2", MINIMAX, 5e6),
        ("llama4_text", LLAMA4, 5e5),
    ],
)
def test_a_silent_file_has_the_rotary_base_of_its_type(model_type, changes, theta):
    assert attentions(read(model_type, changes))[0].rope.theta == theta
    given = read(model_type, changes, rope_theta=123.0)
    assert attentions(given)[0].rope.theta == 123.0


def test_active_parameters_leave_out_experts_that_a_token_does_not_visit():
    config = read("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2})
    idle = 6 * 6 * 3 * 256 * 512
    assert active_params(config) == num_params(config) - idle
    dense = read("llama")
    assert active_params(dense) == num_params(dense)


def test_llama_has_all_biases_or_none():
    assert read("llama").layers == read("mistral", sliding_window=None).layers
    assert attentions(read("llama")) == [HEAD] * 6
    assert ffns(read("llama")) == [DenseFfn(size=512)] * 6
    biased = replace(HEAD, qkv_bias=True, out_bias=True)
    assert attentions(read("llama", attention_bias=True)) == [biased] * 6


def test_mistral_slides_unless_its_file_says_null():
    assert attentions(read("mistral", sliding_window=512))[0].window == 512
    assert attentions(read("mistral"))[0].window == 4096, "the type's own"
    assert attentions(read("mistral", sliding_window=None))[0].window is None


def test_qwen_windows_stand_behind_a_switch():
    off = read("qwen2", sliding_window=512, max_window_layers=4)
    assert attentions(off) == [replace(HEAD, qkv_bias=True)] * 6
    on = read("qwen2", sliding_window=512, max_window_layers=4, use_sliding_window=True)
    assert [a.window for a in attentions(on)] == [None] * 4 + [512] * 2
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 3}
    listed = read("qwen2", kinds, use_sliding_window=True, sliding_window=512)
    assert [a.window for a in attentions(listed)] == [512, None] * 3
    with pytest.raises(ValueError, match="field 'sliding_window' is missing"):
        read("qwen2", kinds, use_sliding_window=True)
    with pytest.raises(ValueError, match="use_sliding_window is false"):
        read("qwen2", kinds, sliding_window=512)


def test_phi3_may_turn_a_part_of_each_head():
    half = read("phi3", partial_rotary_factor=0.5)
    assert attentions(half)[0].rope == Rope(size=16, theta=1e4)
    assert attentions(read("phi3"))[0].window is None


def test_smollm3_leaves_every_fourth_layer_without_rotary_embedding():
    turned = [a.rope is not None for a in attentions(read("smollm3"))]
    assert turned == [True, True, True, False, True, True]
    listed = read("smollm3", no_rope_layers=[0, 1, 1, 1, 1, 0])
    assert [a.rope is None for a in attentions(listed)] == [True, *[False] * 4, True]


def test_qwen2_moe_has_a_gated_shared_expert_in_every_nth_layer():
    changes = {**QWEN, "shared_expert_intermediate_size": 160, "decoder_sparse_step": 2}
    config = read("qwen2_moe", changes, mlp_only_layers=[3])
    expert = ExpertFfn(
        num_experts=6,
        top_k=2,
        size=96,
        shared_size=160,
        shared_gated=True,
        routing=Routing(scores="softmax", normalised=False),
    )
    dense = DenseFfn(size=512)
    assert ffns(config) == [dense, expert, dense, dense, dense, expert]
    assert attentions(config)[0] == replace(HEAD, qkv_bias=True)


def test_qwen3_moe_norms_heads_and_weights():
    config = read("qwen3_moe", QWEN, head_dim=64, norm_topk_prob=True)
    expert = ExpertFfn(num_experts=6, top_k=2, size=96, routing=Routing())
    assert set(ffns(config)) == {expert} and expert.routing.normalised
    assert attentions(config)[0] == replace(WIDE, qk_norm="head")


def test_mixtral_weighs_by_a_softmax_over_the_chosen():
    config = read("mixtral", num_local_experts=8, num_experts_per_tok=2)
    routing = Routing(scores="softmax_of_chosen", normalised=False)
    expert = ExpertFfn(num_experts=8, top_k=2, size=512, routing=routing)
    assert ffns(config) == [expert] * 6


def test_glm4_moe_turns_half_of_a_head_and_starts_dense():
    config = read("glm4_moe", GLM, head_dim=64, attention_bias=True)
    half = replace(WIDE, rope=Rope(size=32, theta=1e4), qkv_bias=True)
    assert attentions(config) == [half] * 6
    routing = Routing(scores="sigmoid", biased=True)
    expert = ExpertFfn(
        num_experts=6, top_k=2, size=96, shared_size=192, routing=routing
    )
    assert ffns(config) == [DenseFfn(size=512)] + [expert] * 5
    whole = read("glm4_moe", GLM, use_qk_norm=True, partial_rotary_factor=1.0)
    assert attentions(whole)[0] == replace(HEAD, qk_norm="head")


def test_minimax_m2_norms_all_heads_at_once_and_goes_by_two_names():
    config = read("minimax_m2", MINIMAX)
    rope = Rope(size=32, theta=5e6)
    assert attentions(config) == [replace(WIDE, rope=rope, qk_norm="layer")] * 6
    routing = Routing(scores="sigmoid", biased=True)
    assert ffns(config)[0] == ExpertFfn(
        num_experts=6, top_k=2, size=512, routing=routing
    )
    named = read("minimax", MINIMAX, architectures=["MiniMaxM2ForCausalLM"])
    assert named == config
    with pytest.raises(ValueError, match="model_type 'minimax' is not supported"):
        read("minimax", MINIMAX)


def test_ernie_has_experts_in_a_range_of_layers():
    config = read("ernie4_5_moe", ERNIE)
    dense, expert = DenseFfn(size=512), ffns(config)[1]
    assert ffns(config) == [dense, *[expert] * 4, dense]
    assert expert.routing == Routing(scores="softmax", biased=True)
    assert expert.shared_size == 192


def test_deepseek_v3_routes_within_groups_and_scales():
    changes = {**DEEPSEEK, "q_lora_rank": 48, "num_nextn_predict_layers": 1}
    config = read("deepseek_v3", changes)
    attention = LatentAttention(
        num_heads=8,
        query_rank=48,
        kv_rank=32,
        nope_dim=16,
        value_dim=16,
        rope=Rope(size=8, theta=1e4),
    )
    assert attentions(config) == [attention] * 6
    routing = Routing(scores="sigmoid", biased=True, groups=4, top_groups=2, scale=2.5)
    expert = ExpertFfn(num_experts=8, top_k=2, size=96, shared_size=96, routing=routing)
    assert ffns(config) == [DenseFfn(size=512)] * 2 + [expert] * 4
    assert config.notes == (
        "1 multi-token-prediction module is not run: speculative decoding is off",
    )
    assert read("kimi_k2", changes) == config


def test_deepseek_v2_scores_groups_by_their_best_expert():
    greedy = read("deepseek_v2", DEEPSEEK)
    assert attentions(greedy)[0].query_rank is None
    plain = Routing(scores="softmax", group_best=1, normalised=False)
    assert ffns(greedy)[2].routing == plain
    grouped = read("deepseek_v2", DEEPSEEK, topk_method="group_limited_greedy")
    assert ffns(grouped)[2].routing == replace(plain, groups=4, top_groups=2)


def test_llama4_chunks_its_turned_layers_and_scales_queries_in_the_others():
    config = read("llama4_text", LLAMA4)
    rope = Rope(size=64, theta=5e5)
    turned = replace(WIDE, rope=rope, window=8192, chunked=True, qk_norm="unit")
    bare = replace(WIDE, rope=None, query_scaling=(8192.0, 0.1))
    assert attentions(config) == [turned, turned, turned, bare, turned, turned]
    routing = Routing(scores="sigmoid", normalised=False, on_input=True)
    expert = ExpertFfn(
        num_experts=4, top_k=1, size=512, shared_size=512, routing=routing
    )
    assert ffns(config) == [DenseFfn(size=1024), expert] * 3
    plain = read(
        "llama4_text",
        LLAMA4,
        use_qk_norm=False,
        attention_chunk_size=None,
        attn_temperature_tuning=False,
    )
    assert attentions(plain)[2:4] == [replace(WIDE, rope=r) for r in (rope, None)]


def test_nemotron_leaves_out_what_a_block_does_not_have():
    attention, ffn = {"n_heads_in_group": 4}, {"ffn_mult": 2.0}
    blocks = [
        {"attention": attention, "ffn": ffn},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}},
        {"attention": {"no_op": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
    ]
    config = read(
        "nemotron-nas",
        num_hidden_layers=4,
        block_configs=blocks,
        intermediate_size=None,
    )
    # Two thirds of 2.0 x 256 are 341, of 0.5 x 256 are 85; both up to 256's multiples.
    assert ffns(config) == [DenseFfn(size=512), DenseFfn(size=256), None]
    assert attentions(config) == [HEAD, None, replace(HEAD, num_kv_heads=1)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_sink_tokens": 4}, "num_sink_tokens in attention is not supported"),
        ({"replace_with_linear": True}, "replace_with_linear in attention is not"),
        ({"n_heads_in_group": 3}, "n_heads_in_group 3 does not divide 8 heads"),
    ],
)
def test_a_nemotron_block_that_asks_for_more_is_refused(changes, expected):
    attention = {"n_heads_in_group": 4, **changes}
    blocks = [{"attention": attention, "ffn": {"ffn_mult": 1.0}}] * 6
    with pytest.raises(ValueError, match=expected):
        read("nemotron-nas", block_configs=blocks)


def test_switch_is_one_stack_of_ungated_experts_and_says_so():
    config = read(
        "switch_decoder",
        hidden_act="relu",
        num_experts=16,
        num_experts_per_tok=1,
        num_key_value_heads=None,
    )
    routing = Routing(scores="softmax", normalised=False)
    expert = ExpertFfn(num_experts=16, top_k=1, size=512, gated=False, routing=routing)
    assert ffns(config) == [expert] * 6
    assert attentions(config) == [replace(HEAD, num_kv_heads=8)] * 6
    (note,) = config.notes
    assert "one decoder stack" in note
    assert num_params(config) == (
        2 * 1000 * 256
        + 6 * (16 * 2 * 256 * 512 + 16 * 256 + 4 * 256 * 256 + 2 * 256)
        + 256
    )


def test_a_text_model_beside_a_vision_tower_is_read_and_the_tower_noted():
    text = {**BASE, "model_type": "qwen3_vl_text", "head_dim": 64}
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [24, 20, 20]}
    del text["tie_word_embeddings"]
    outer = {
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": {"depth": 27},
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    config = read_config(outer, "m")
    alone = read("qwen3", head_dim=64)
    assert config.layers == alone.layers
    assert config.tie_word_embeddings and config.dtype == "float16"
    assert config.notes == (
        "a vision tower stands beside the text model; only the text model is planned",
    )
    flat = read("qwen2_vl", vision_config={"depth": 32})
    assert flat.layers == read("qwen2").layers and flat.notes == config.notes
