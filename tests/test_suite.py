"""The suite is what the design says, and every core instance can be prepared."""

import pytest

import lts
from lts.models import load
from lts.prepare import prepare_problem
from lts.problem import zoo_problem
from lts.suite import CLUSTERS, CORE, MODELS, WORKLOADS, instances, weight_bytes


def test_workloads_have_the_lengths_and_limits_of_the_design():
    found = {
        name: (w.input_len, w.output_len, w.ttft_s, w.tpot_s)
        for name, w in WORKLOADS.items()
    }
    assert found == {
        "chat": (1024, 1024, 2.0, 0.05),
        "chat-tight": (1024, 1024, 2.0, 0.02),
        "summarise": (8192, 1024, 4.0, 0.05),
        "long": (131072, 1024, 60.0, 0.05),
        "prefill": (4096, 0, 2.0, None),
    }


def test_the_core_is_the_one_of_the_design():
    assert [str(instance) for instance in CORE] == [
        "llama-3.1-8b h100:1x8 chat",
        "llama-3.1-70b h100:1x8 chat",
        "llama-3.1-70b h100:2x8 summarise",
        "llama-3.1-405b h100:2x8 chat",
        "qwen3-32b h100:1x8 long",
        "mixtral-8x22b h100:1x8 chat",
        "qwen3-235b-a22b h100:2x8 chat",
        "qwen3-235b-a22b h100:3x8 chat",
        "deepseek-v3 h100:2x8 chat",
        "deepseek-v3 h100:8x8 chat-tight",
        "kimi-k2 h100:8x8 summarise",
        "moe-1.6t h100:8x8 chat-tight",
        "moe-1.6t h100:128x8 chat",
        "switch-c-2048 h100:8x8 chat",
    ]


def test_instances_are_those_whose_weights_take_four_fifths_of_the_memory():
    found = instances()
    assert set(CORE) <= set(found)
    smallest = {}
    for instance in found:
        smallest.setdefault(instance.model, instance.cluster)
    assert smallest == {
        "llama-3.1-8b": "h100:1x8",
        "llama-3.1-70b": "h100:1x8",
        "llama-3.1-405b": "h100:2x8",
        "qwen3-32b": "h100:1x8",
        "mixtral-8x7b": "h100:1x8",
        "mixtral-8x22b": "h100:1x8",
        "qwen3-235b-a22b": "h100:1x8",
        "deepseek-v3": "h100:2x8",
        "kimi-k2": "h100:2x8",
        "moe-1.6t": "h100:3x8",
        "switch-c-2048": "h100:8x8",
    }
    assert len(found) == len(WORKLOADS) * (6 * 6 + 2 * 5 + 5 + 4 + 3)


def test_weights_are_counted_in_the_form_they_are_published_in():
    llama, deepseek = load("llama-3.1-8b"), load("deepseek-v3")
    assert weight_bytes(llama) == 2 * llama.num_params
    # fp8 but for embedding, head, norms and routers; a float32 scale per 128 x 128
    ends = 2 * deepseek.config.vocab_size * deepseek.config.hidden_size
    whole = deepseek.num_params + ends
    assert whole < weight_bytes(deepseek) < 1.001 * whole


def test_pools_have_room_for_two_copies_of_the_weights():
    doubled = {
        str(i) for i in CORE if i.cluster_of("pools") != i.cluster_of("colocated")
    }
    assert doubled == {
        "llama-3.1-405b h100:2x8 chat",
        "deepseek-v3 h100:2x8 chat",
        "switch-c-2048 h100:8x8 chat",
    }
    for instance in CORE:
        cluster = instance.cluster_of("pools")
        room = cluster.num_gpus * cluster.usable_bytes
        assert 2 * weight_bytes(load(instance.model)) < room


@pytest.mark.parametrize("instance", CORE, ids=str)
def test_a_core_instance_fits_its_cluster(instance):
    assert instance.model in MODELS and instance.cluster in CLUSTERS
    workload, model = WORKLOADS[instance.workload], load(instance.model)
    cluster = lts.Cluster.parse(instance.cluster)
    prepared = prepare_problem(zoo_problem(model, workload), workload, cluster)
    assert set(prepared.graphs) == {"prefill", "decode"}
    assert prepared.space.log10_size() > 50
