"""What reports read from a plan's data."""

from typing import Any

import pytest

from lts.report import facts


def test_ops_that_shard_alike_in_every_phase_share_a_row(
    served: dict[str, Any],
) -> None:
    rows = facts.op_rows(served)
    assert [row.label for row in rows] == ["embed", "attention: query, out", "last"]
    both = (("heads", ("x",)), ("batch", ("y",)))
    assert rows[1].sharded == {"prefill": both, "decode": both}


def test_an_op_that_a_phase_lacks_has_no_sharding_there(served: dict[str, Any]) -> None:
    last = facts.op_rows(served)[-1]
    assert last.sharded == {"prefill": None, "decode": (("batch", ("y",)),)}


def test_values_are_listed_on_demand_and_arguments_never(
    served: dict[str, Any], plain: dict[str, Any]
) -> None:
    labels = [row.label for row in facts.op_rows(served, values=True)]
    assert labels == ["embed", "attention: query, out", "attention: query:", "last"]
    assert [row.label for row in facts.op_rows(plain)] == ["mine.py:3 dot_general"]


def test_axes_that_shard_one_factor_stand_together(served: dict[str, Any]) -> None:
    axes = facts.assignment(served)["axes"]
    assert facts.sharded(["heads", "heads"], axes) == (("heads", ("x", "y")),)
    assert facts.sharded_text((("heads", ("x", "y")),)) == "[heads@x*y]"
    assert facts.sharded_text(()) == "[]"
    assert facts.sharded_text(None) == "-"


def test_layers_of_a_list_with_one_spec_share_a_row(served: dict[str, Any]) -> None:
    rows = {row.path: row for row in facts.argument_rows(served)}
    query = rows["params/layers/*/query"]
    assert query.partition_spec == "P(None, ('x', 'y'))"
    assert query.named == "[hidden, heads@x*y]"
    assert query.sharded == (("heads", ("x", "y")),)
    assert query.phases == ("prefill", "decode")


def test_layers_of_a_list_whose_specs_differ_keep_their_rows(
    served: dict[str, Any],
) -> None:
    for phase in served["phases"].values():
        phase["in_specs"][2][1] = [None, "x"]
    paths = [row.path for row in facts.argument_rows(served)]
    assert paths[1:3] == ["params/layers/0/query", "params/layers/1/query"]


def test_an_argument_whose_spec_differs_by_phase_has_a_row_each(
    served: dict[str, Any],
) -> None:
    rows = [row for row in facts.argument_rows(served) if row.path == "tokens"]
    assert [(row.phases, row.partition_spec) for row in rows] == [
        (("prefill",), "P('y')"),
        (("decode",), "P(None)"),
    ]


def test_parts_of_a_phase_have_their_share_of_its_time(
    served: dict[str, Any],
) -> None:
    decode = facts.time_rows(served, "decode")
    assert decode[-1].kind == "hand-over"
    assert decode[-1].time_s == pytest.approx(0.0005)
    assert [row.share for row in decode] == pytest.approx([0.2, 0.4, 0.2, 0.2])
    assert {row.kind for row in facts.time_rows(served, "prefill")} == {
        "op",
        "value",
        "reshard",
    }


def test_memory_parts_sum_to_the_peak(
    served: dict[str, Any], plain: dict[str, Any]
) -> None:
    assert facts.memory_parts(served) == {
        "weights": 40e9,
        "KV cache": 15e9,
        "activations": 5e9,
    }
    assert facts.memory_parts(plain) == {
        "arguments and results": 2e6,
        "activations": 1e6,
    }


def test_degrees_are_told_in_words(served: dict[str, Any]) -> None:
    words = facts.degree_words(served)
    assert words == (
        "2 pipeline stages x 4-way data x 2-way tensor (pp 2, dp 4, tp 2, cp 1)"
    )
    one = {**served["degrees"], "pp": 1, "dp": 1, "tp": 1}
    served["phases"]["decode"]["degrees"] = one
    assert facts.degree_words(served) == "one GPU (pp 1, dp 1, tp 1, cp 1)"


def test_axes_are_told_by_the_link_that_they_run_on(served: dict[str, Any]) -> None:
    assert facts.mesh_words(served) == (
        "x=2 across nodes (InfiniBand-NDR400); y=4 inside a node (NVLink4)"
    )
    served["phases"]["decode"]["assignment"]["axes"] = []
    assert facts.mesh_words(served) == "one GPU"


def test_pools_shard_by_axes_of_their_own(pooled: dict[str, Any]) -> None:
    rows = {row.label: row.sharded for row in facts.op_rows(pooled)}
    assert rows["attention: query, out"] == {
        "prefill": (("heads", ("y",)),),
        "decode": (("heads", ("x",)), ("batch", ("y",))),
    }
    assert facts.mesh_words(pooled, "prefill") == "y=2 inside a node (NVLink4)"
    assert facts.mesh_words(pooled) == "x=2, y=2 inside a node (NVLink4)"


def test_arguments_of_pools_share_no_row(pooled: dict[str, Any]) -> None:
    pooled["phases"]["decode"]["in_specs"][0][1] = [None, "y"]
    rows = [row for row in facts.argument_rows(pooled) if row.path == "params/embed"]
    # the same words, but "y" is another axis
    assert [row.phases for row in rows] == [("prefill",), ("decode",)]
    assert {row.partition_spec for row in rows} == {"P(None, 'y')"}


def test_instances_memory_and_idle_gpus_of_pools_are_told(
    pooled: dict[str, Any], served: dict[str, Any]
) -> None:
    assert facts.instance_words(pooled, "prefill") == "3 instances of 2 GPUs"
    assert facts.instance_words(pooled, "decode") == "1 instance of 8 GPUs"
    assert facts.idle_gpus(pooled) == 16 - 3 * 2 - 8
    assert facts.idle_gpus(served) == 0
    assert facts.memory_parts(pooled, "prefill") == {
        "weights": 40e9,
        "KV cache": 5e9,
        "activations": 5e9,
    }
    assert facts.memory_parts(pooled)["KV cache"] == 15e9


def test_degrees_of_experts_are_told_where_they_are_split(
    served: dict[str, Any],
) -> None:
    served["phases"]["decode"]["degrees"] = {
        **{"pp": 1, "dp": 16, "tp": 1, "cp": 1},
        **{"moe_tp": 2, "moe_ep": 8},
    }
    assert facts.degree_words(served) == (
        "16-way data, experts 2-way tensor x 8-way expert (pp 1, dp 16, tp 1, cp 1, "
        "moe_tp 2, moe_ep 8)"
    )
