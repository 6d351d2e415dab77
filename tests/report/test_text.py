"""A plan as text: the numbers, with units, against their limits."""

from typing import Any

import pytest

from lts.report.listing import clusters_text, models_text, verification_text
from lts.report.text import plan_text, table_text


def lines_of(data: dict[str, Any], width: int = 100, full: bool = False) -> list[str]:
    """Lines with runs of blanks as one, for the layout is not the point."""
    text = plan_text(data, width=width, full=full)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_served_plan_states_model_cluster_and_mesh(served: dict[str, Any]) -> None:
    lines = lines_of(served)
    assert lines[0] == "tiny on h100:4x4 (16 x H100-SXM5-80GB)"
    assert lines[1] == (
        "2048 tokens in, 256 out, float8_e4m3fn weights, bfloat16 KV cache"
    )
    assert "Stages 2, handing over across nodes (InfiniBand-NDR400)" in lines
    assert (
        "Mesh x=2 across nodes (InfiniBand-NDR400); y=4 inside a node (NVLink4)"
        in lines
    )


def test_served_plan_states_metrics_against_limits(served: dict[str, Any]) -> None:
    lines = lines_of(served)
    assert "tokens/s/GPU 100.5 1,608 generated tokens/s in all" in lines
    assert "TTFT 250.0 ms limit 1000 ms, 25.0% of it" in lines
    assert "TPOT 12.5 ms no limit" in lines
    assert (
        "concurrency 96 requests prefill steps of 8 a stage, decode steps of 48 a stage"
        in lines
    )
    # 84.9 GB of HBM less 10%
    assert "memory per GPU 60.0 GB limit 76.4 GB, 78.5% of it" in lines
    assert "weights 40.0 GB, KV cache 15.0 GB, activations 5.0 GB" in lines


def test_pools_stand_side_by_side(pooled: dict[str, Any]) -> None:
    lines = lines_of(pooled, width=140)
    assert lines[0] == "tiny on h100:4x4 (16 x H100-SXM5-80GB), as pools"
    for line in (
        "prefill decode",
        "instances 3 instances of 2 GPUs 1 instance of 8 GPUs",
        "degrees 2-way tensor (pp 1, dp 1, tp 2, cp 1) 2 pipeline stages x 2-way data "
        "x 2-way tensor (pp 2, dp 2, tp 2, cp 1)",
        "stages 2, handing over across nodes (InfiniBand-NDR400)",
        "mesh y=2 inside a node (NVLink4) x=2, y=2 inside a node (NVLink4)",
        "batch steps of 8 steps of 48 a stage",
        "step 200.0 ms 2.5 ms",
        "serves 7.50 requests/s 6.28 requests/s",
        "idle 2 GPUs",
        "TTFT 250.0 ms limit 1000 ms, 25.0% of it; KV transfer 12.5 ms",
        "concurrency 96 requests in all decode instances",
        "params: embed (prefill) [hidden@y] P(None, 'y')",
        "params: embed (decode) [hidden@x] P(None, 'x')",
    ):
        assert line in lines


def test_bound_gap_and_search_are_stated(served: dict[str, Any]) -> None:
    text = " ".join(lines_of(served))
    assert (
        "no plan of this space exceeds 134.0 tokens/s/GPU, by a relaxation: every "
        "operator at its fastest, all reshards free" in text
    )
    assert "at most 25.0% from the optimum" in text
    assert "random, 8,192 evaluations of a budget of 9,000, seed 7" in text
    assert "decode: a while loop of unknown length counts once" in text


def test_operators_and_arguments_show_what_axes_shard(served: dict[str, Any]) -> None:
    lines = lines_of(served)
    assert "embed [hidden@x, batch@y] [hidden@x]" in lines
    assert "attention: query, out [heads@x, batch@y] same" in lines
    assert "params: embed [hidden@x] P(None, 'x')" in lines
    assert "tokens (prefill) [batch@y] P('y')" in lines
    assert not any(line.startswith("tokens (decode)") for line in lines)


def test_time_is_split_by_kind_and_by_the_longest_parts(served: dict[str, Any]) -> None:
    lines = lines_of(served)
    assert "all 200.0 ms 100.0% 2.5 ms 100.0%" in lines
    assert "operators 170.0 ms 85.0% 1.5 ms 60.0%" in lines
    assert "communication 20.0 ms 10.0% 500.0 us 20.0%" in lines
    assert "pipeline hand-over - - 500.0 us 20.0%" in lines
    longest = lines.index("attention/query 100.0 ms 50.0% 1.0 ms 40.0%")
    assert lines[longest + 1] == "embed 50.0 ms 25.0% 500.0 us 20.0%"


def test_full_text_has_values_and_replicated_arguments(served: dict[str, Any]) -> None:
    lines = lines_of(served, full=True)
    assert "attention: query: [heads@x] same" in lines
    assert "tokens (decode) [batch] P(None)" in lines
    assert "out/0 P('y')" in lines


def test_function_has_a_step_time_and_no_serving_words(plain: dict[str, Any]) -> None:
    lines = lines_of(plain)
    assert lines[0] == "a function on h100:1x4 (4 x H100-SXM5-80GB)"
    assert "step time 60.0 us" in lines
    assert "arguments and results 2.0 MB, activations 1.0 MB" in lines
    text = " ".join(lines)
    assert "no plan of this space steps in under 30.0 us" in text
    assert "no search: the layout was given" in text
    assert "TTFT" not in text and "tokens" not in text and "Degrees" not in text


@pytest.mark.parametrize("width", [72, 88, 140])
@pytest.mark.parametrize("plan", ["served", "pooled"])
def test_lines_keep_the_width(
    plan: str, width: int, request: pytest.FixtureRequest
) -> None:
    data = request.getfixturevalue(plan)
    data["notes"] = ["a long note " * 30]
    text = plan_text(data, width=width, full=True)
    assert max(map(len, text.splitlines())) <= width


def test_text_is_plain_ascii_without_escapes(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = plan_text(served)
    assert text.isascii() and "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_width_follows_the_terminal(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert plan_text(served) == plan_text(served, width=80)


def test_brackets_in_cells_are_no_markup() -> None:
    assert table_text([("[bold]x[/bold]", "[batch@x]")], 80) == (
        "[bold]x[/bold]  [batch@x]"
    )


def test_models_are_listed_with_kv_bytes_per_token() -> None:
    model = {
        "name": "llama-3.1-8b",
        "num_params": 8_030_261_248,
        "active_params": 8_030_261_248,
        "num_layers": 32,
        "dtype": "bfloat16",
        "kv_bytes_per_token": 131_072,
        "max_position_embeddings": 131_072,
    }
    row = models_text([model], width=100).splitlines()[1].split()
    assert row == [
        *("llama-3.1-8b", "8.03", "B", "8.03", "B", "32", "bfloat16"),
        *("131.1", "kB", "131,072"),
    ]


def test_clusters_are_listed_with_links_and_sources(served: dict[str, Any]) -> None:
    text = " ".join(clusters_text([served["cluster"]], width=100).split())
    assert "HBM 84.9 GB, 3.35 TB/s" in text
    assert "bfloat16 989" in text
    assert "NVLink4, 340 GB/s per GPU one way, 3.6 us" in text
    assert "InfiniBand-NDR400, 40 GB/s per GPU one way, 20 us" in text
    assert " ".join(served["cluster"]["inter"]["source"].split()) in text


def report(**changes: Any) -> dict[str, Any]:
    same = {
        "kind": "all_reduce",
        "axes": ["x"],
        "nbytes": 64,
        "predicted": 3,
        "emitted": 3,
        "reasons": ["attention/out -> embed:"],
    }
    return {
        "phase": "decode",
        "target": "cpu",
        "ok": True,
        "argument_bytes": 1000,
        "predicted_argument_bytes": 1000,
        "output_bytes": 300,
        "predicted_output_bytes": 300,
        "alias_bytes": 200,
        "predicted_alias_bytes": 200,
        "temp_bytes": 5_000_000,
        "predicted_temp_bytes": 4_500_000,
        "peak_bytes": 5_001_100,
        "predicted_peak_bytes": 4_501_100,
        "unknown_trips": 0,
        "warnings": [],
        "rows": [same],
        **changes,
    }


def test_verification_that_agrees_is_two_counts() -> None:
    text = verification_text({"ok": True, "phases": [report()]}, width=100)
    assert text.splitlines() == [
        "decode, compiled for cpu",
        "  collectives: 1 of 1 kinds as predicted, 0 differ",
        "  arguments: 1,000 bytes per device, as predicted",
        "  results: 300 bytes per device, as predicted",
        "  in place: 200 bytes per device, as predicted",
    ]


def test_scratch_is_that_of_a_gpu_only() -> None:
    phases = [report(target="h100", predicted_alias_bytes=0)]
    text = verification_text({"ok": True, "phases": phases}, width=100)
    assert text.splitlines()[2:] == [
        "  arguments: 1,000 bytes per device, as predicted",
        "  results: 300 bytes per device, as predicted",
        "  in place: 200 bytes per device, 0 predicted",
        "  scratch: 5.0 MB per device, 4.5 MB predicted",
        "  peak: 5.0 MB per device, 4.5 MB predicted",
    ]


def test_verification_lists_what_differs() -> None:
    row = {
        **report()["rows"][0],
        "kind": "all_gather",
        "axes": ["x", "y"],
        "emitted": 1,
    }
    changed = report(
        rows=[row, *report()["rows"]],
        predicted_argument_bytes=900,
        unknown_trips=1,
        warnings=["replicates\n  f32[8]"],
    )
    text = verification_text({"ok": False, "phases": [changed]}, width=100)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "collectives: 1 of 2 kinds as predicted, 1 differs" in lines
    assert "arguments: 1,000 bytes per device, 900 predicted" in lines
    assert "1 collective in loops of unknown trip count, counted once" in lines
    assert "warning: replicates f32[8]" in lines
    assert lines[-1] == "all_gather x*y 64 B 3 1 attention/out -> embed:"
