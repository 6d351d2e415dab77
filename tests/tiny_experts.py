"""Tiny mixtures of experts, and layouts of them over 8 devices, that tests share."""

import functools

import lts
from lts.build_plan import Context, plan_of
from lts.degrees import with_roles
from lts.models import Decoder, read_config
from lts.phase import ModelSource
from lts.prepare import Prepared, prepare_problem
from lts.problem import zoo_problem
from tests.tiny import BASE, CLUSTER, WORKLOAD

NUM_EXPERTS, NUM_LAYERS = 16, 2
_SIZES = {
    **BASE,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "num_hidden_layers": NUM_LAYERS,
}
_DEEPSEEK = {
    "n_routed_experts": NUM_EXPERTS,
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
CONFIGS = {
    "experts": {
        **_SIZES,
        "model_type": "qwen3_moe",
        "num_experts": NUM_EXPERTS,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "shared expert": {
        **_SIZES,
        **_DEEPSEEK,
        "model_type": "glm4_moe",
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": False,
    },
    "latent attention": {
        **{k: v for k, v in _SIZES.items() if k not in ("head_dim",)},
        **_DEEPSEEK,
        "model_type": "deepseek_v3",
        "num_key_value_heads": 8,
        "num_hidden_layers": NUM_LAYERS + 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [8, 8],
        },
    },
    "ungated": {
        **BASE,
        "model_type": "switch_decoder",
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": 1,
        "hidden_act": "relu",
    },
}

LAYOUTS = {
    "experts over all": (("dp", "dp", "dp"), ("ep", "ep", "ep")),
    "experts x tensor": (("dp", "dp", "tp"), ("ep", "ep", "tp")),
    "data x experts": (("dp", "dp", "dp"), ("dp", "ep", "ep")),
    "experts by sum": (("dp", "tp", "tp"), ("dp", "sum", "sum")),
    "half by sum": (("dp", "tp", "dp"), ("ep", "sum", "dp")),
}
"""What every mesh axis (2, 2, 2) does in attention, and in the experts."""


def expert_model(name: str) -> Decoder:
    """The tiny decoder of that name."""
    return Decoder(config=read_config(CONFIGS[name], name))


@functools.cache
def prepared(name: str) -> Prepared:
    """Its space and prices on 8 GPUs."""
    problem = zoo_problem(expert_model(name), WORKLOAD)
    return prepare_problem(problem, WORKLOAD, CLUSTER, max_stages=1)


@functools.cache
def laid_out(name: str, layout: str) -> lts.Plan:
    """The plan of a layout, whatever it costs."""
    found, model = prepared(name), expert_model(name)
    number = next(i for i, d in enumerate(found.space.degrees) if d.stages == 1)
    picks = with_roles(found.space, number, *LAYOUTS[layout])
    source = ModelSource(
        model=model, workload=WORKLOAD, weight_dtype=None, kv_dtype=None
    )
    context = Context(workload=WORKLOAD, problem=source.stage_problem(1), model=source)
    provenance = {"method": "price", "seed": 0, "budget": 1, "evaluations": 1}
    return plan_of(found, picks, context, provenance)


def expert_states(plan: lts.Plan, phase: str) -> tuple[str | None, ...]:
    """What every mesh axis shards in the expert op."""
    states = plan.phase(phase).assignment.states[phase]
    (name,) = (n for n in states if n.split("/")[-1] == "experts")
    return states[name]
