"""Blocks of the benchmark's models, shrunk, and random legal plans of them.

Small enough that XLA compiles a step in a second, large enough that what is legal for
the model (heads, groups, experts) is legal here.
"""

import json
import math
from importlib import resources
from typing import Any

import numpy as np

import lts
from lts.applied import AppliedStep, Lowerable, auto_mesh
from lts.assignment import Assignment
from lts.cost.features import INHERIT_SHARE
from lts.models import Decoder, read_config
from lts.prepare import Prepared, prepare_problem
from lts.problem import Problem, zoo_problem
from lts.space import INHERIT, Space
from lts.specs import without_unit_axes
from lts.tracing.labels import dim_names

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
EXPERT_SIZES: dict[str, Any] = {**SIZES, "moe_intermediate_size": 128}

BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3.1-8b", {**SIZES, "num_key_value_heads": 8, "head_dim": 32}),
    "dense, norms of heads": (
        "qwen3-32b",
        {**SIZES, "num_key_value_heads": 8, "head_dim": 32},
    ),
    "experts": (
        "qwen3-235b-a22b",
        {**EXPERT_SIZES, "num_key_value_heads": 4, "head_dim": 32, "num_experts": 32},
    ),
    "experts, few": (
        "mixtral-8x7b",
        {**SIZES, "num_key_value_heads": 8, "head_dim": 32},
    ),
    "latent": (
        "deepseek-v3",
        {
            **EXPERT_SIZES,
            "num_hidden_layers": 3,
            "num_key_value_heads": 16,
            "first_k_dense_replace": 1,
            "n_routed_experts": 32,
            "q_lora_rank": 64,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [16, 16],
            },
        },
    ),
}
"""Blocks: a model of the benchmark, and what is shrunk of its config."""

CLUSTERS = ("h100:1x8", "h100:2x8")
BATCH, PROMPT = 32, 64
WORKLOAD = lts.Workload(PROMPT, 16, concurrency=BATCH)


def block_model(name: str) -> Decoder:
    """A block's decoder, in the types that its model is published in."""
    model, sizes = BLOCKS[name]
    path = resources.files("lts.models") / "zoo" / f"{model}.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Decoder(config=read_config({**fields, **sizes}, name))


def prepared_block(name: str, cluster: str) -> tuple[Problem, Prepared]:
    """The block's space of plans on a cluster, without pipeline stages."""
    problem = zoo_problem(block_model(name), WORKLOAD)
    own = lts.Cluster.parse(cluster)
    return problem, prepare_problem(problem, WORKLOAD, own, max_stages=1)


def drawn(prepared: Prepared, number: int) -> Assignment:
    """The plan of that number, from the prior of the searches; legal at any batch."""
    for attempt in range(100):
        picks = random_picks(prepared.space, np.random.default_rng((number, attempt)))
        assignment = without_unit_axes(prepared.space.decode(picks))
        if _is_legal(prepared, assignment):
            return assignment
    raise RuntimeError(f"no legal plan in 100 draws, plan {number}")


def random_picks(space: Space, rng: np.random.Generator) -> np.ndarray:
    """A candidate from the prior of `lts.methods.moves.sample_prior`; `[genes]`."""
    picks = rng.integers(space.cardinalities)
    inherits = rng.random(space.num_genes) < INHERIT_SHARE
    inherits[: space.first_override] = False
    return np.where(inherits, INHERIT, picks)


def _is_legal(prepared: Prepared, assignment: Assignment) -> bool:
    """Whether what shards the batch divides it."""
    sizes = assignment.degrees.shape
    for phase, graph in prepared.graphs.items():
        for node in graph.nodes:
            states = assignment.states[phase].get(node.name, ())
            on = dict(zip(sizes, states, strict=False))
            for factor in node.factors:
                ways = math.prod(sizes[a] for a, s in on.items() if s == factor.name)
                if factor.batched and factor.units % ways:
                    return False
    return True


def lowerable(
    problem: Problem,
    prepared: Prepared,
    assignment: Assignment,
    phase: str,
    batch: int = BATCH,
) -> Lowerable:
    """One phase with the plan's shardings inside, on an abstract mesh."""
    step = AppliedStep(
        function=problem.function(phase),
        assignment=assignment,
        phase=phase,
        dims=dim_names(prepared.graphs),
        mesh=auto_mesh(None, assignment.degrees.shape),
        donated=(problem.cache,),
        weights=(problem.weights,),
    )
    return step.prepared(problem.args(phase, batch), {})
