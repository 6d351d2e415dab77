"""The suite is what the design says, and every core instance can be prepared."""

import pytest

import lts
from lts.models import load
from lts.prepare import prepare_problem
from lts.problem import zoo_problem
from lts.suite import CLUSTERS, CORE, MODELS, WORKLOADS


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


@pytest.mark.parametrize("instance", CORE, ids=str)
def test_a_core_instance_fits_its_cluster(instance):
    assert instance.model in MODELS and instance.cluster in CLUSTERS
    workload, model = WORKLOADS[instance.workload], load(instance.model)
    cluster = lts.Cluster.parse(instance.cluster)
    prepared = prepare_problem(zoo_problem(model, workload), workload, cluster)
    assert set(prepared.graphs) == {"prefill", "decode"}
    assert prepared.space.log10_size() > 50
