"""Public bug reports as inputs: what people struggled with, and the right answer.

Each test names the report that it comes from.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lts
from lts.degrees import by_hand
from lts.expert_roles import expert_degrees
from lts.models import Decoder, kv_bytes_per_token, read_config
from lts.prepare import prepare_problem
from lts.problem import zoo_problem
from tests.tiny import CLUSTER, WORKLOAD
from tests.tiny_experts import CONFIGS

SIXTY = {**CONFIGS["experts"], "num_experts": 60}


@pytest.fixture(scope="module")
def sixty_experts():
    model = Decoder(config=read_config(SIXTY, "60 experts"))
    problem = zoo_problem(model, WORKLOAD)
    return model, prepare_problem(problem, WORKLOAD, CLUSTER, max_stages=1)


def test_experts_that_eight_ways_do_not_divide_are_refused_with_those_that_do(
    sixty_experts,
):
    """vllm-project/vllm#52435, sgl-jax PR#349: an assertion was all users got."""
    model, _ = sixty_experts
    message = "moe_ep=8 does not divide 60 experts: it can be 1, 2, 3, 4, 5, 6, 10, 12"
    with pytest.raises(ValueError, match=re.escape(message)):
        lts.price(model, cluster=CLUSTER, workload=WORKLOAD, degrees={"moe_ep": 8})


def test_sixty_experts_use_eight_gpus_as_four_by_two(sixty_experts):
    """vllm-project/vllm#52435: experts 4 ways, each split 2 ways, no GPU idle."""
    model, prepared = sixty_experts
    whole = by_hand(prepared.space, {"moe_ep": 4, "moe_tp": 2})
    tables = prepared.evaluator.tables
    variables = prepared.space.variables
    (up,) = (i for i, v in enumerate(variables) if v.name.endswith("/expert_up"))
    choice = prepared.space.choices(whole)[up]
    values = model.config.num_hidden_layers * 60 * 64 * 32
    assert tables.looped_bytes[up][whole[0], choice] == values * 4 / 8


@pytest.mark.parametrize("method", ["random", "annealing"])
def test_no_search_splits_sixty_experts_in_ways_that_do_not_divide(
    sixty_experts, method
):
    _, prepared = sixty_experts
    rng = np.random.default_rng(3)
    genes = rng.integers(
        prepared.space.cardinalities, size=(200, prepared.space.num_genes)
    )
    ways = set()
    for picks in genes:
        choices = prepared.space.choices(picks)
        ways.add(expert_degrees(prepared.space, choices, int(picks[0]))["moe_ep"])
    assert ways == {1, 2, 4}
    plan = lts.search(
        sixty_experts[0],
        cluster=CLUSTER,
        workload=WORKLOAD,
        method=method,
        budget=256,
        max_stages=1,
    )
    assert 60 % plan.degrees["moe_ep"] == 0


ROWS, WIDTH, HIDDEN, EXPERTS = 4096, 1024, 512, 64


def ragged(x, sizes, up, down):
    """Rows sorted by expert, as programs without an expert op write it."""
    return lax.ragged_dot(lax.ragged_dot(x, up, sizes), down, sizes)


def named(x, weight, expert, up, down):
    return lts.expert_ffn(x, weight, expert, None, up, down)


def test_ragged_dot_gets_no_credit_for_sharded_experts():
    """jax-ml/jax#34168: experts sharded, and XLA gathers; the expert op does not."""
    shape = jax.ShapeDtypeStruct
    x = shape((ROWS, WIDTH), jnp.bfloat16)
    up = shape((EXPERTS, WIDTH, HIDDEN), jnp.bfloat16)
    down = shape((EXPERTS, HIDDEN, WIDTH), jnp.bfloat16)
    sizes = shape((EXPERTS,), jnp.int32)
    slots = shape((ROWS, 1), jnp.bfloat16), shape((ROWS, 1), jnp.int32)
    mesh = jax.make_mesh((8,), ("x",))
    split = {"up": P("x"), "down": P("x")}
    rows = {**split, "x": P("x"), "weight": P("x"), "expert": P("x")}
    plain = lts.price(
        ragged, (x, sizes, up, down), mesh=mesh, specs={**split, "x": P("x")}
    )
    own = lts.price(named, (x, *slots, up, down), mesh=mesh, specs=rows)
    nbytes = 2 * EXPERTS * WIDTH * HIDDEN
    link = plain.cluster.intra.bandwidth_bytes_per_s
    gathered = {
        part.name: part.time_s
        for part in plain.metrics.breakdown
        if part.kind == "reshard" and part.name.split(" -> ")[0] in split
    }
    assert len(gathered) == 2
    for time_s in gathered.values():  # seven eighths of a weight cross the links
        assert time_s > 7 / 8 * nbytes / link
    assert own.metrics.step_time_s < plain.metrics.step_time_s / 2
    assert any("lts.expert_ffn" in note for note in plain.notes)
    kinds = {part.kind for part in own.metrics.breakdown}
    assert "reshard" not in kinds  # rows travel inside the op, no weight does


LONG = lts.Workload(32768, 1024, tpot_ms=100)


@pytest.fixture(scope="module")
def deepseek():
    return lts.models.load("deepseek-v3")


def cached(plan: lts.Plan) -> float:
    """Bytes that a token of the requests in flight keeps, over all GPUs."""
    held = plan.metrics.cache_bytes * plan.cluster.num_gpus
    return held / (plan.metrics.concurrency * plan.workload.context_len)


def test_tensor_parallel_keeps_the_latent_cache_whole_on_every_gpu(deepseek):
    """TensorRT-LLM#15162, DeepSeek-V3#283: the term that does not scale."""
    cluster = lts.Cluster.parse("h100:4x8")
    per_token = kv_bytes_per_token(deepseek.config)
    workload = lts.Workload(8192, 1024, concurrency=32)
    for degrees, copies in (
        ({"tp": 32, "moe_ep": 32}, 32),
        ({"dp": 32, "moe_ep": 32}, 1),
        ({"cp": 32, "moe_ep": 32}, 1),
        ({"dp": 4, "tp": 8, "moe_ep": 32}, 8),
    ):
        plan = lts.price(deepseek, cluster=cluster, workload=workload, degrees=degrees)
        assert cached(plan) == pytest.approx(per_token * copies, rel=1e-6)


def test_a_search_shards_the_latent_cache_of_long_contexts(deepseek):
    """TensorRT-LLM#15367, vllm PR#23734: over requests or positions, not at all over
    heads, which the latent does not have."""
    cluster = lts.Cluster.parse("h100:2x8")
    plan = lts.search(
        deepseek,
        cluster=cluster,
        workload=LONG,
        method="annealing",
        budget=4000,
        max_stages=1,
    )
    per_token = kv_bytes_per_token(deepseek.config)
    assert cached(plan) < 4 * per_token  # of 16 copies, if heads were split
