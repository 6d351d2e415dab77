"""From a problem to an evaluator, and what is said when nothing can fit."""

import re
import time

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive

import lts
from lts.cost.tables import batch_ladder, padded
from lts.hardware import Cluster
from lts.models import Decoder, load
from lts.prepare import NoFeasiblePlanError, prepare_function, prepare_problem
from lts.problem import (
    TRACED_BATCH,
    Problem,
    argument_names,
    batch_dims,
    zoo_problem,
)
from lts.workload import Workload
from tests.tiny import PRICED as TINY


def refusal(name: str, workload: Workload, cluster: str) -> str:
    with pytest.raises(NoFeasiblePlanError) as caught:
        prepare_problem(
            zoo_problem(load(name), workload), workload, Cluster.parse(cluster)
        )
    return str(caught.value)


def test_weights_that_cannot_fit_name_the_smallest_cluster_that_would_do() -> None:
    workload = Workload(input_len=1024, output_len=1024)
    message = refusal("llama-3.1-405b", workload, "h100:1x8")
    assert message.startswith("llama-3.1-405b does not fit h100:1x8: the weights need ")
    # 811.7 GB over 8 GPUs: all but the norms can be sharded
    assert "need 101.5 GB per GPU at least, of 76.4 GB usable" in message
    remedy = re.search(r"would do is (h100:(\d+)x(\d+))", message)
    assert remedy is not None
    nodes, gpus = int(remedy[2]), int(remedy[3])
    assert (nodes, gpus) == (2, 8)
    larger = prepare_problem(
        zoo_problem(load("llama-3.1-405b"), workload),
        workload,
        Cluster.parse(remedy[1]),
    )
    assert larger.space.degrees


def test_a_small_node_is_offered_more_gpus_of_one_node_first() -> None:
    workload = Workload(input_len=1024, output_len=1024)
    message = refusal("llama-3.1-70b", workload, "h100:1x1")
    assert "the weights need 141.1 GB per GPU" in message
    assert message.endswith("would do is h100:1x2")


def test_a_cache_that_cannot_fit_is_named_beside_the_weights() -> None:
    workload = Workload(input_len=8_000_000, output_len=1)
    message = refusal("llama-3.1-8b", workload, "h100:1x8")
    assert "the KV cache of one request need" in message
    # 2 x 2 bytes x 32 layers x 8 heads x 128, sharded 8 ways
    cache = 8_000_001 * 2 * 2 * 32 * 8 * 128 / 8
    assert f"needs {cache / 1e9:.1f} GB per GPU at least beside" in message


def test_a_hopeless_cache_is_refused_soon() -> None:
    workload = Workload(input_len=10**12, output_len=1)
    before = time.monotonic()
    message = refusal("llama-3.1-8b", workload, "h100:1x8")
    assert message.endswith("no cluster of these GPUs up to 512 nodes would do")
    assert time.monotonic() - before < 30


def test_functions_of_scalars_are_refused() -> None:
    cluster = Cluster.parse("h100:1x8")
    with pytest.raises(ValueError, match="no array to shard: it only touches scalars"):
        prepare_function(lambda x: x + 1, (1.0,), {}, cluster)


unknown = Primitive("turn_somehow")
unknown.def_abstract_eval(lambda x: x)


def test_unknown_primitives_can_be_priced_replicated() -> None:
    args = ((jax.ShapeDtypeStruct((8, 16), "float32"),), {})
    cluster = Cluster.parse("h100:1x2")
    with pytest.raises(lts.UnsupportedOpError, match="'turn_somehow'"):
        prepare_function(unknown.bind, *args, cluster)
    found = prepare_function(unknown.bind, *args, cluster, on_unknown="replicate")
    assert found.graphs["step"].notes
    assert [op.primitive for op in found.graphs["step"].ops] == ["turn_somehow"]


def test_keyword_arguments_are_priced() -> None:
    x = jax.ShapeDtypeStruct((8, 16), "float32")

    def scale(x: jax.Array, *, by: jax.Array) -> jax.Array:
        return x @ by.T

    found = prepare_function(scale, (x,), {"by": x}, Cluster.parse("h100:1x2"))
    paths = [leaf.path for n in found.graphs["step"].values for leaf in n.leaves]
    assert paths == ["x", "by", "out"]


def test_a_given_concurrency_is_split_over_stages() -> None:
    workload = Workload(input_len=64, output_len=64, concurrency=24)
    problem = zoo_problem(Decoder(config=TINY), workload)
    found = prepare_problem(problem, workload, Cluster.parse("h100:1x8"))
    batches = found.evaluator.tables.phases["decode"].batches
    stages = np.array([d.stages for d in found.space.degrees])
    np.testing.assert_array_equal(batches[:, 0], -(-24 // stages))


def test_prefill_only_has_one_phase() -> None:
    workload = Workload(input_len=64)
    problem = zoo_problem(Decoder(config=TINY), workload)
    found = prepare_problem(problem, workload, Cluster.parse("h100:1x8"))
    assert list(found.graphs) == list(found.traced) == ["prefill"]
    assert list(found.evaluator.tables.phases) == ["prefill"]


def test_batch_dims_are_those_that_change_with_the_batch() -> None:
    problem = zoo_problem(Decoder(config=TINY), Workload(64, 64))
    assert batch_dims(problem, "prefill") == {
        "cache/key": (1,),
        "cache/value": (1,),
        "tokens": (0,),
    }


def test_a_problem_of_ones_own_knows_its_arguments() -> None:
    def prefill(params: jax.Array, cache: jax.Array, tokens: jax.Array) -> jax.Array:
        return cache + tokens @ params

    problem = Problem(
        prefill=prefill,
        decode=prefill,
        args=lambda phase, batch: (
            jax.ShapeDtypeStruct((16, 64), "float32"),
            jax.ShapeDtypeStruct((batch, 64), "float32"),
            jax.ShapeDtypeStruct((batch, 16), "float32"),
        ),
    )
    assert problem.kind("params") == "parameter"
    assert problem.kind("cache/key") == "cache"
    assert problem.kind("tokens") == "input"
    assert argument_names(prefill, 2) == ("params", "cache")
    assert argument_names(lambda *xs: xs, 2) == ()
    workload = Workload(input_len=8, output_len=8, concurrency=8)
    found = prepare_problem(problem, workload, Cluster.parse("h100:1x2"))
    (op,) = found.graphs["decode"].ops
    assert {f.size: f.batched for f in op.factors} == {
        16: False,
        64: False,
        TRACED_BATCH: True,
    }


@pytest.mark.parametrize(("mesh", "top"), [(1, 1), (3, 50), (8, 4096), (16, 100_000)])
def test_batch_ladders_climb_by_a_tenth_at_most(mesh: int, top: int) -> None:
    rungs = batch_ladder(mesh, top)
    assert rungs == sorted(set(rungs))
    assert (rungs[0], rungs[-1]) == (1, top)
    for low, high in zip(rungs, rungs[1:], strict=False):
        assert high <= max(low + 1, low * 1.1 + 1e-9)
    assert {mesh * k for k in range(1, 11) if mesh * k <= top} <= set(rungs)


def test_padding_repeats_the_last_batch() -> None:
    np.testing.assert_array_equal(padded([[1, 2, 3], [4]]), [[1, 2, 3], [4, 4, 4]])
