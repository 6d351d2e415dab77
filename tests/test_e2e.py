"""Measured rows, their models and deployments, comparisons: on a few made-up rows."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments import e2e_accuracy
from experiments.e2e.comparisons import (
    Choice,
    Score,
    equal_load,
    equal_size,
    maximum_load,
    under_limit,
)
from experiments.e2e.deployments import deployment_of
from experiments.e2e.folds import (
    by_engine,
    by_profile,
    by_shape,
    fixed,
    folded,
    named_profiles,
)
from experiments.e2e.machines import cluster_of
from experiments.e2e.models import Models, plain
from experiments.e2e.points import Priced, price
from experiments.e2e.rows import Row, read, without_repeats
from experiments.e2e.sizes import read_sizes
from lts.cost.profile import MEMORY_RULES, Profile
from lts.cost.served import LinearAttention, served_model
from lts.models import load

COLUMNS = (
    "id model n_params_b gpu n_gpus precision tp pp ep dp phase input_len output_len "
    "batch_or_concurrency metric value unit source source_date notes"
).split()
BASE = {
    "id": "aic-1",
    "model": "Llama-3.1-8B-Instruct",
    "gpu": "H100-SXM-80GB",
    "n_gpus": "1",
    "precision": "bf16",
    "tp": "1",
    "pp": "1",
    "ep": "1",
    "dp": "1",
    "phase": "mixed",
    "input_len": "1024",
    "output_len": "128",
    "batch_or_concurrency": "8",
    "metric": "tpot_mean",
    "value": "7.5",
    "unit": "ms",
    "source": "a page",
    "source_date": "2026-03-25",
    "notes": "cmp=aic|Llama|H100|vllm|bf16|0.12.0|date?|1024/128|c8; closed loop",
}


class Roofline:
    """Kernels at a share of the peaks, to price rows without calibrations."""

    def __init__(self, cluster) -> None:
        self.flops = cluster.chip.peak("bfloat16") * 0.7
        self.bytes = cluster.chip.hbm_bandwidth_bytes_per_s * 0.8
        self.link = cluster.intra

    def gemm(self, m, n, k, form):
        width = 1 if form.startswith("fp8") else 2
        return np.maximum(2 * m * n * k / self.flops, n * k * width / self.bytes)

    def prefill_attention(
        self, batch, length, heads, kv_heads, head_dim, window, cache
    ):
        return 2 * batch * length**2 * heads * head_dim / self.flops

    def decode_attention(
        self, batch, context, heads, kv_heads, head_dim, window, cache
    ):
        return batch * context * kv_heads * head_dim * 4 / self.bytes

    def latent_attention(self, phase, batch, length, heads, cache):
        return batch * length * heads * 1e-12

    def experts(
        self, tokens, hidden, size, top_k, experts, tensor_ways, expert_ways, form
    ):
        active = np.minimum(tokens * top_k, experts) / expert_ways
        return active * 3 * hidden * size / tensor_ways * 2 / self.bytes

    def collective(self, kind, nbytes, inside, across, custom):
        return 5e-6 + nbytes / self.link.bandwidth_bytes_per_s

    def pass_on(self, nbytes, across):
        return 5e-6 + nbytes / self.link.bandwidth_bytes_per_s

    def elementwise(self, nbytes):
        return nbytes / self.bytes


def written(path: Path, *changes: dict[str, str]) -> list[Row]:
    """Rows read back from a file of `BASE` with changes."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for number, change in enumerate(changes):
            writer.writerow({**BASE, "id": f"aic-{number}", **change})
    return read(path)


def priced(rows: list[Row], values: list[float] | None = None) -> Priced:
    own = price(rows, Models(None), Roofline)
    if values is not None:
        assert len(own.rows) == len(values)
    return own


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def test_rows_are_in_seconds_and_tokens_of_the_whole_deployment(file: Path) -> None:
    rate = {"unit": "tok/s", "n_gpus": "8", "value": "100"}
    latency, gpu, node, both, requests = written(
        file,
        {},
        {**rate, "metric": "output_throughput_per_gpu"},
        {**rate, "metric": "output_throughput_per_node", "n_gpus": "16"},
        {**rate, "metric": "total_token_throughput"},
        {**rate, "metric": "request_throughput"},
    )
    assert (latency.quantity, latency.value) == ("tpot_s", 0.0075)
    assert gpu.value == 800 and node.value == 200
    assert both.value == pytest.approx(100 * 128 / 1152)
    assert requests.value == 100 * 128


def test_rows_say_engine_version_year_load_and_doubts(file: Path) -> None:
    trt = {
        "id": "trt017-3",
        "source": "github.com/NVIDIA/TensorRT-LLM docs/perf-overview.md (v0.17)",
        "source_date": "2025-02",
        "batch_or_concurrency": "",
        "notes": "cmp=trt017|x; max-load offline throughput",
    }
    pages = {"source": "github.com/gpustack/gpustack docs/deepseek-v3.2/h200.md"}
    closed, most, once, online, unknown = written(
        file,
        {},
        trt,
        {
            **pages,
            "batch_or_concurrency": "1000 requests at once",
            "notes": "ShareGPT; SGLang 0.5.6 TP8",
        },
        {"batch_or_concurrency": "qps=16"},
        {"id": "iss-1", "notes": "", "ep": "", "input_len": "random<=9"},
    )
    assert (closed.profile, closed.engine_year) == ("vllm 0.12.0 aic", "vllm-2026")
    assert (closed.load, closed.requests) == ("closed", 8)
    assert (most.profile, most.load) == ("trtllm 0.17 trt017", "max")
    assert most.engine_year == "trtllm-2025" and most.group == "trt017|x"
    assert (once.engine, once.version) == ("sglang", "0.5.6")
    assert (once.load, once.requests) == ("at_once", 1000)
    assert (online.load, online.rate, online.requests) == ("open", 16, None)
    assert unknown.engine == "unknown" and unknown.low_confidence
    assert unknown.ep is None and unknown.input_len is None


def test_a_repeat_under_another_name_is_dropped(file: Path) -> None:
    rows = written(file, {}, {"model": "Llama-3.1-8B"}, {"value": "7.6"})
    assert [row.id for row in without_repeats(rows, Models.key)] == ["aic-0", "aic-2"]


def test_model_names_resolve_by_alias_folder_and_published_sizes(
    tmp_path: Path,
) -> None:
    assert plain("DeepSeek-V4-Flash-0731-NVFP4") == "deepseek-v4-flash"
    models = Models(None)
    assert models.find("DeepSeek-R1-0528").name == "deepseek-v3"
    assert models.find("Llama-3.3-70B").num_layers == 80
    assert models.find("LLaMA-2-13B").hidden_size == 5120
    with pytest.raises(ValueError, match="no configuration of 'Tiny-1B'"):
        models.find("Tiny-1B")
    (tmp_path / "me--Tiny-1B_config.json").write_text(
        '{"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size":'
        ' 9, "num_attention_heads": 4, "intermediate_size": 96}'
    )
    assert Models(tmp_path).find("Tiny-1B").hidden_size == 64


def test_sizes_alone_give_what_a_decoder_has() -> None:
    config = load("deepseek-v3").config
    sizes = {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "vocab_size": 129280,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
    }
    own, full = read_sizes(sizes, "x"), served_model(config)
    assert [layer.repeats for layer in own.layers] == [3, 58]
    assert own.num_expert_layers == full.num_expert_layers == 58
    assert own.layers[1].ffn.shared_size == full.layers[1].ffn.shared_size  # type: ignore
    mixed = read_sizes(
        {
            **sizes,
            "full_attention_interval": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        "y",
    )
    linear = sum(
        layer.repeats
        for layer in mixed.layers
        if isinstance(layer.attention, LinearAttention)
    )
    assert linear == 61 - 15
    with pytest.raises(ValueError, match="field 'vocab_size' is missing"):
        read_sizes({"hidden_size": 4, "num_hidden_layers": 0}, "z")


def test_deployments_tell_replicas_from_servers(file: Path) -> None:
    rows = written(
        file,
        {"dp": "4", "n_gpus": "4"},
        {"model": "Mixtral-8x7B", "dp": "4", "ep": "4", "n_gpus": "4"},
        {
            "model": "Mixtral-8x7B",
            "tp": "2",
            "dp": "2",
            "n_gpus": "4",
            "notes": "cmp=x; 2 x TP2; vLLM 0.29.0",
        },
        {"model": "Mixtral-8x7B", "dp": ""},
    )
    models = Models(None)
    dense, experts, servers = (
        deployment_of(row, models.find(row.model)) for row in rows[:3]
    )
    assert (dense.servers, dense.layout.dp, dense.requests) == (4, 1, 2)
    assert (experts.servers, experts.layout.dp, experts.layout.ep) == (1, 4, 4)
    assert (servers.servers, servers.layout.tp, servers.requests) == (2, 2, 4)
    with pytest.raises(ValueError, match="degree not given"):
        deployment_of(rows[3], models.find("Mixtral-8x7B"))


def test_gpus_without_a_sheet_are_refused() -> None:
    assert cluster_of("A100-SXM-40GB").chip.hbm_bytes == 40e9
    assert cluster_of("RTX-6000D (PCIe, SM120)").chip.name == "RTX-6000D"
    with pytest.raises(ValueError, match="no data sheet"):
        cluster_of("AMD Instinct")


def test_rows_are_priced_and_misses_have_a_reason(file: Path) -> None:
    rows = written(
        file,
        {},
        {"model": "Unknown-3B"},
        {"gpu": "TPU"},
        {"metric": "p90_latency"},
        {"metric": "ttft_mean"},
    )
    own = priced(rows)
    assert [row.id for row in own.rows] == ["aic-0", "aic-4"]
    reasons = [reason for _, reason in own.misses]
    assert "no configuration" in reasons[0] and "no data sheet" in reasons[1]
    assert "not predicted" in reasons[2]
    values = fixed(folded(own), [Profile()] * 2)
    # weights of 16 GB at 80% of 3.35 TB/s, and overheads
    assert 6e-3 < values[0] < 10e-3
    assert 10e-3 < values[1] < 100e-3


def test_a_cache_that_is_full_limits_what_runs(file: Path) -> None:
    most = {
        "batch_or_concurrency": "",
        "notes": "max-load",
        "metric": "output_throughput_total",
        "unit": "tok/s",
        "precision": "fp8",
        "model": "Llama-3.1-70B",
    }
    one, two = priced(
        written(file, most, {**most, "tp": "2", "n_gpus": "2"})
    ).points.in_flight
    assert one < 10 < 100 < two


def test_pairs_regret_and_rules_are_counted() -> None:
    def choice(gpus: int, measured: float, predicted: float) -> Choice:
        return Choice(
            num_gpus=gpus, measured=measured, predicted=predicted, experts=False,
            row=None,  # type: ignore
        )  # fmt: skip

    score = Score()
    score.add([choice(1, 100, 5), choice(2, 80, 9), choice(4, 50, 1)])
    score.add([choice(1, 10, 1), choice(2, 10.5, 2)])
    score.add([choice(1, 10, 1)])
    found = score.summary()
    assert found["pairs"] == 3 and found["right"] == pytest.approx(2 / 3)
    assert found["fewest_gpus"] == 1 and found["most_gpus"] == 0
    assert found["groups"] == 2
    assert sorted(score.regret) == pytest.approx([0, 0.25])
    assert sorted(score.most_regret) == pytest.approx([0, 1.0])


def loops_of(file: Path) -> Priced:
    """Two configurations at two loads, both latencies each."""
    changes = []
    for tp, requests, tpot, ttft in (
        (1, 8, 10, 100), (1, 16, 14, 120), (2, 16, 9, 80), (2, 32, 12, 110),
    ):  # fmt: skip
        own = {"tp": str(tp), "n_gpus": str(tp), "batch_or_concurrency": str(requests)}
        changes += [
            {**own, "value": str(tpot)},
            {**own, "value": str(ttft), "metric": "ttft_mean"},
        ]
    return priced(written(file, *changes))


def test_equal_loads_and_limits_compare_throughput_per_gpu(file: Path) -> None:
    own = loops_of(file)
    measured = np.array([row.value for row in own.rows])
    found = equal_load(own, measured).summary()
    # at 8 requests a GPU 9 ms beat 10, at 16 12 beat 14; more than 10% each
    assert (found["pairs"], found["right"], found["most_gpus"]) == (2, 1, 1)
    swapped = measured.copy()
    swapped[4], swapped[0] = measured[0], measured[4]
    assert equal_load(own, swapped).right == 1
    best = under_limit(own, measured)
    assert best["within"] == 1 and best["broken"] == 0
    # who thinks that the slow point is quick breaks the limits below its time
    quick = measured.copy()
    quick[2] = 7e-3
    assert under_limit(own, quick)["broken"] > 0


def test_maximum_load_is_compared_per_gpu(file: Path) -> None:
    most = {
        "batch_or_concurrency": "",
        "notes": "cmp=g; max-load",
        "metric": "output_throughput_total",
        "unit": "tok/s",
    }
    own = priced(
        written(
            file,
            {**most, "value": "1000"},
            {**most, "value": "1500", "tp": "2", "n_gpus": "2"},
        )
    )
    assert maximum_load(own, np.array([1000.0, 1500.0])).right == 1
    assert maximum_load(own, np.array([1000.0, 2500.0])).right == 0
    assert maximum_load(own, np.array([1.0, 2.0]), np.zeros(2, bool)).pairs == 0


def test_pairs_of_equal_size_are_counted_by_what_differs(file: Path) -> None:
    own = {"n_gpus": "4", "model": "Mixtral-8x7B", "notes": "cmp=k; x; vLLM 0.29.0"}
    rows = written(
        file,
        {**own, "tp": "4", "value": "10"},
        {**own, "tp": "4", "ep": "4", "value": "12"},
        {**own, "tp": "2", "pp": "2", "value": "20"},
        {**own, "tp": "2", "dp": "2", "value": "10.5"},
    )
    found = equal_size(priced(rows), np.array([1.0, 2.0, 1.5, 3.0]))
    counts = {kind: (c.right, c.pairs) for (kind, *_), c in found.items()}
    # 10 against 10.5 is too near; 12 against 10.5 is told wrong
    assert counts == {"EP": (1, 1), "PP": (1, 3), "DP": (0, 1)}


def test_a_fold_does_not_see_its_own_shape(file: Path) -> None:
    lengths = [(i, o) for i in (128, 2048) for o in (128, 256, 512)]
    rows = written(
        file,
        *[
            {
                "input_len": str(i),
                "output_len": str(o),
                "batch_or_concurrency": str(c),
                "value": "9",
            }
            for i, o in lengths
            for c in (1, 8)
        ],
    )
    own = folded(priced(rows))
    assert len(np.unique(own.shapes)) == 6
    everything = np.ones(len(rows), bool)
    assert [*by_profile(own, everything)] == ["vllm 0.12.0 aic"]
    base = by_shape(own, Profile())
    wild = own.points.value.copy()
    wild[own.shapes == 0] *= 1.3
    changed = replace(own, points=own.points._replace(value=wild))
    again = by_shape(changed, Profile())
    np.testing.assert_allclose(again[own.shapes == 0], base[own.shapes == 0])
    assert not np.allclose(again[own.shapes != 0], base[own.shapes != 0])


def test_shipped_profiles_are_of_years_and_of_releases_with_enough_points(
    file: Path,
) -> None:
    rows = written(
        file,
        *[
            {"input_len": str(i), "value": str(v), "source_date": "2025", "notes": n}
            for i, v in zip(range(128, 1408, 128), range(50, 60), strict=True)
            for n in (BASE["notes"], BASE["notes"].replace("0.12.0", "0.16.0"))
        ],
    )
    own = priced(rows)
    found = named_profiles(own, folded(own), Profile())
    assert set(found) == {"vllm-2025", "middle"}  # 10 points a release are too few
    assert found["vllm-2025"].memory == MEMORY_RULES["vllm"]
    assert found["vllm-2025"].points == 20
    twice = priced(rows + [replace(row, value=1.01 * row.value) for row in rows])
    found = named_profiles(twice, folded(twice), Profile())
    assert set(found) == {"vllm-2025", "vllm-0.12", "vllm-0.16", "middle"}
    assert found["vllm-0.16"].points == 20


def test_a_row_is_told_by_its_release_its_year_or_the_middle(file: Path) -> None:
    (row,) = written(file, {})
    assert e2e_accuracy.shipped(row).name == "vllm-0.12"
    unnamed = replace(row, version="nightly", year=2031)
    assert e2e_accuracy.shipped(unnamed).name == "vllm-2026"
    packed = replace(row, engine="nim", version="1.8.0", year=2025)
    assert e2e_accuracy.shipped(packed).name == "trtllm-2025"
    assert e2e_accuracy.shipped(replace(row, engine="lmdeploy")).name == "middle"


def test_an_engine_held_out_is_told_by_the_others(file: Path) -> None:
    other = BASE["notes"].replace("vllm", "sglang").replace("0.12.0", "0.5.9")
    assert other != BASE["notes"]
    rows = written(
        file,
        *[
            {"input_len": str(i), "value": v, "notes": n}
            for i in (128, 512, 1024, 2048)
            for v, n in (("7", BASE["notes"]), ("10", other))
        ],
    )
    own = folded(priced(rows))
    assert set(own.engines) == {"vllm", "sglang"}
    quick = own.engines == "vllm"
    held = by_engine(own, Profile())
    seen = by_shape(own, Profile())
    assert (held[quick] > seen[quick]).all() and (held[~quick] < seen[~quick]).all()
    wild = own.points.value * np.where(quick, 1.3, 1)
    changed = replace(own, points=own.points._replace(value=wild))
    again = by_engine(changed, Profile())
    np.testing.assert_allclose(again[quick], held[quick])


def test_the_experiment_writes_its_tables_and_lists_misses(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    written(file, {}, {"metric": "ttft_mean"}, {"gpu": "TPU-9"})
    out = file.parent / "out"
    asked = ["e2e", "--measured", str(file), "--equal", str(file), "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*asked, "--quick"])
    e2e_accuracy.main()
    data = json.loads((out / "summary.json").read_text())
    for protocol in ("shipped", "middle", "unfitted"):
        assert data[f"Errors/TPOT/rows/{protocol}"] == 1
        assert 0 < data[f"Errors/TPOT/median/{protocol}"] < 2
    assert "Errors/TPOT/rows/shape" not in data
    with (out / "figures.csv").open(newline="") as lines:
        assert len([*csv.DictReader(lines)]) == len(data)
    assert (out / "errors.png").stat().st_size > 10_000
    text = (out / "e2e.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert "1: no data sheet of GPU 'TPU-9' (aic-2)" in text
