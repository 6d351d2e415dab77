"""Clusters: preset values, the text and YAML forms, and what each refuses."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lts.hardware import Chip, Cluster, Link

PRESETS = Cluster.presets()


def mutated(*path: str, value: object = None, drop: bool = False) -> dict:
    """The dict form of an H100 cluster with one field changed, added or dropped."""
    data = Cluster.preset("h100").to_dict()
    place = data
    for name in path[:-1]:
        place = place[name]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


def test_presets_are_listed_sorted() -> None:
    assert PRESETS == ("a100", "h100", "h200")


@pytest.mark.parametrize(
    "name, hbm_gib, bandwidth, bfloat16, float32",
    [
        ("a100", 79.3, 2.039e12, 312e12, 19.5e12),
        ("h100", 79.1, 3.35e12, 989.4e12, 66.9e12),
        ("h200", 139.8, 4.8e12, 989.4e12, 66.9e12),
    ],
)
def test_preset_chips_have_their_datasheet_values(
    name: str, hbm_gib: float, bandwidth: float, bfloat16: float, float32: float
) -> None:
    chip = Cluster.preset(name).chip
    assert round(chip.hbm_bytes / 2**30, 1) == hbm_gib
    assert chip.hbm_bandwidth_bytes_per_s == bandwidth
    assert chip.peak("bfloat16") == chip.peak("float16") == bfloat16
    assert chip.peak("float32") == float32


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_eight_bit_peaks_double_those_of_bfloat16(name: str) -> None:
    chip = Cluster.preset(name).chip
    assert chip.peak("int8") == chip.peak("float8_e4m3fn")
    assert chip.peak("int8") == pytest.approx(2 * chip.peak("bfloat16"), rel=1e-3)


# What was measured: median large bf16 GEMM, median weight streaming (bytes/s), NCCL
# all-reduce bus bandwidth from 128 MiB on, small collective over 4 GPUs; 3% is the
# rounding of the stored constants, the latency line is a fit over three group sizes.
@pytest.mark.parametrize(
    "name, matmul, stream, bus, small_s",
    [
        ("a100", 257.9e12, 1.557e12, 205.0e9, 12.4e-6),
        ("h100", 757.3e12, 2.738e12, 341.0e9, 7.5e-6),
        ("h200", 760.9e12, 3.833e12, 341.0e9, 7.5e-6),
    ],
)
def test_achieved_rates_agree_with_the_measured_medians(
    name: str, matmul: float, stream: float, bus: float, small_s: float
) -> None:
    cluster = Cluster.preset(name)
    chip, intra = cluster.chip, cluster.intra
    assert chip.matmul_efficiency * chip.peak("bfloat16") == pytest.approx(matmul, 0.03)
    streamed = chip.hbm_efficiency * chip.hbm_bandwidth_bytes_per_s
    assert streamed == pytest.approx(stream, 0.03)
    assert intra.bandwidth_bytes_per_s == pytest.approx(bus, 0.03)
    over_four = intra.latency_s + intra.hop_latency_s * math.log2(4)
    assert over_four == pytest.approx(small_s, 0.2)


@pytest.mark.parametrize("name", PRESETS)
def test_the_network_is_slower_and_later_than_nvlink(name: str) -> None:
    cluster = Cluster.preset(name)
    assert cluster.inter.bandwidth_bytes_per_s < cluster.intra.bandwidth_bytes_per_s / 5
    assert cluster.inter.latency_s > 2 * cluster.intra.latency_s


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_number_has_a_source(name: str) -> None:
    cluster = Cluster.preset(name)
    for record in cluster.chip, cluster.intra, cluster.inter:
        assert len(record.source) > 40


def test_unknown_dtype_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="dtype 'float8_e4m3fn'; known: bfloat16"):
        Cluster.preset("a100").chip.peak("float8_e4m3fn")


def test_usable_bytes_leave_the_reserve() -> None:
    cluster = dataclasses.replace(Cluster.preset("h100"), reserve_fraction=0.25)
    assert cluster.usable_bytes == 63707234304  # 3/4 of 84942979072
    assert Cluster.preset("h100").reserve_fraction == 0.1


def test_resized_changes_only_the_counts() -> None:
    cluster = Cluster.preset("h100").resized(nodes=3, gpus_per_node=4)
    assert (cluster.num_gpus, cluster.nodes, cluster.gpus_per_node) == (12, 3, 4)
    assert cluster.resized(1, 8) == Cluster.preset("h100")


def test_equal_clusters_hash_equal() -> None:
    clusters = [Cluster.parse("h100:2x8"), Cluster.preset("h100", nodes=2)]
    assert len(set(clusters)) == 1


@settings(deadline=None)  # machines are shared
@given(st.sampled_from(PRESETS), st.integers(1, 10**6), st.integers(1, 8))
def test_text_and_dict_forms_give_the_cluster_back(
    name: str, nodes: int, gpus: int
) -> None:
    cluster = Cluster.preset(name, nodes, gpus)
    assert Cluster.parse(str(cluster)) == cluster
    assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


@pytest.mark.parametrize(
    "text, nodes, gpus",
    [("h100:2x8", 2, 8), ("H100:8", 1, 8), (" h200:1 ", 1, 1), ("a100:128x8", 128, 8)],
)
def test_parse_reads_nodes_and_gpus(text: str, nodes: int, gpus: int) -> None:
    cluster = Cluster.parse(text)
    assert cluster.name == text.strip().lower().partition(":")[0]
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, gpus)


@pytest.mark.parametrize(
    "text, message",
    [
        ("h100", "expected NAME:NODESxGPUS, as in 'h100:2x8'"),
        ("", "expected NAME:NODESxGPUS, as in 'h100:2x8'"),
        ("h100:2*8", "expected NAME:NODESxGPUS"),
        ("h100:2x", "expected NAME:NODESxGPUS"),
        ("h100:-1x8", "expected NAME:NODESxGPUS"),
        ("h100:2x8x4", "expected NAME:NODESxGPUS"),
        ("h100:0x8", "nodes must be a positive integer, got 0"),
        ("h100:2x0", "gpus_per_node must be a positive integer, got 0"),
        ("h100:16", "holds at most 8 GPUs, not 16; for 16 GPUs ask for 'h100:2x8'"),
        ("h100:2x9", "holds at most 8 GPUs, not 9; for 24 GPUs ask for 'h100:3x8'"),
        ("h10:2x8", "unknown cluster preset 'h10'; did you mean 'h100'"),
        ("hopper:2x8", "Presets: a100, h100, h200"),
        ("none.yaml", "cannot read cluster file 'none.yaml': No such file"),
    ],
)
def test_parse_errors_are_one_line_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Cluster.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("nodes", [0, -1, True, 2.0, "2"])
def test_counts_must_be_positive_integers(nodes: object) -> None:
    with pytest.raises(ValueError, match="nodes must be a positive integer"):
        Cluster.preset("h100", nodes=nodes)  # pyright: ignore[reportArgumentType]


def test_a_yaml_file_may_describe_everything(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    cluster = dataclasses.replace(Cluster.preset("a100", 3, 4), name="mine")
    path.write_text(yaml.safe_dump(cluster.to_dict()))
    assert Cluster.load(path) == cluster
    assert Cluster.parse(str(path)) == cluster


def test_a_yaml_file_may_take_chip_and_links_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(
        "name: mine\nchip: h100\nnodes: 4\ngpus_per_node: 16\n"
        "inter: {name: ethernet, bandwidth_bytes_per_s: 10.0e+9, latency_s: 50.0e-6,\n"
        "        hop_latency_s: 0, source: guess}\n"
    )
    cluster = Cluster.parse(str(path))
    h100 = Cluster.preset("h100")
    assert (cluster.chip, cluster.intra) == (h100.chip, h100.intra)
    assert cluster.inter.bandwidth_bytes_per_s == 10e9
    assert cluster.num_gpus == 64


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "cluster must be a mapping of fields, got None"),
        (["h100"], "cluster must be a mapping"),
        (mutated("nodes", drop=True), "cluster: field 'nodes' is missing"),
        (mutated("chip", drop=True), "cluster: field 'chip' is missing"),
        (mutated("gpus", value=8), "cluster: unknown field 'gpus'; known: name, chip"),
        (mutated("nodes", value="two"), "nodes must be a positive integer, got 'two'"),
        (mutated("name", value=7), "name must be a text, got 7"),
        (mutated("chip", value="h10"), "unknown cluster preset 'h10'"),
        (mutated("chip", value=3), "chip must be a mapping of fields, got 3"),
        (mutated("chip", "hbm_bytes", drop=True), "chip: field 'hbm_bytes' is missing"),
        (mutated("chip", "hbm_bytes", value=8e10), "hbm_bytes must be a positive int"),
        (mutated("chip", "peak_flops_per_s", value=1e15), "peak_flops_per_s must be a"),
        (mutated("chip", "peak_flops_per_s", value={}), "given for some dtype, got"),
        (mutated("chip", "peak_flops_per_s", value={16: 1.0}), "keyed by dtype name"),
        (
            mutated("chip", "peak_flops_per_s", value={"int8": -1}),
            r"peak_flops_per_s\[int8\] must be a positive number, got -1",
        ),
        (mutated("chip", "hbm_efficiency", value=1.1), "at most 1, got 1.1"),
        (mutated("chip", "matmul_efficiency", value=0), "a positive number, got 0"),
        (mutated("chip", "op_launch_s", value=-1.0), "op_launch_s must be a number of"),
        (mutated("intra", value="nvlink"), "intra must be a mapping of fields"),
        (mutated("intra", "latency_s", drop=True), "intra: field 'latency_s' is miss"),
        (mutated("inter", "latency_s", value=math.nan), "latency_s must be a number"),
        (
            mutated("inter", "bandwidth_bytes_per_s", value="4e10"),
            "bandwidth_bytes_per_s must be a positive number, got '4e10'; YAML reads",
        ),
        (mutated("inter", "source", value=""), "source must be a text"),
        (mutated("reserve_fraction", value=1.0), "reserve_fraction must be below 1"),
        (mutated("reserve_fraction", value=True), "reserve_fraction must be a number"),
        (
            mutated("overlap_fraction", value=1),
            "overlap_fraction must be below 1, got 1",
        ),
        (mutated("overlap_fraction", value=-0.1), "overlap_fraction must be a number"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_file_and_field(
    data: object, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=message) as error:
        Cluster.load(path)
    assert "bad.yaml" in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_yaml_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    for content in b"name: [h100\nnodes: 2", b"\xff\xfe\x00":
        path.write_bytes(content)
        with pytest.raises(ValueError, match="bad.yaml' is no YAML") as error:
            Cluster.load(path)
        assert "\n" not in str(error.value)


def test_records_are_frozen() -> None:
    cluster = Cluster.preset("h100")
    for record in cluster, cluster.chip, cluster.intra:
        assert isinstance(record, Cluster | Chip | Link)
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def gpus(*kinds_and_nodes: tuple[str, int]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(device_kind=kind, process_index=node)
        for kind, node in kinds_and_nodes
    ]


@pytest.mark.parametrize(
    "kind, preset",
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
    ],
)
def test_detect_counts_nodes_and_gpus(
    kind: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = gpus(*[(kind, node) for node in (0, 1) for _ in range(4)])
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert Cluster.detect() == Cluster.preset(preset, nodes=2, gpus_per_node=4)


def test_detect_takes_an_nvlink_domain_of_several_processes_as_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [
        SimpleNamespace(device_kind="NVIDIA H200", process_index=i, slice_index=i // 4)
        for i in range(8)
    ]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert Cluster.detect() == Cluster.preset("h200", nodes=2, gpus_per_node=4)


def test_detect_on_cpu_says_how_to_name_a_cluster() -> None:
    with pytest.raises(ValueError, match=r"JAX sees \(cpu\).*Cluster.parse\('h100:2x8"):
        Cluster.detect()


@pytest.mark.parametrize(
    "devices, message",
    [
        ([("NVIDIA H100 PCIe", 0)], r"no cluster known .* \(NVIDIA H100 PCIe\)"),
        ([("NVIDIA H200", 0), ("NVIDIA B200", 0)], r"\(NVIDIA B200, NVIDIA H200\)"),
        ([("NVIDIA H200", n) for n in (0, 0, 1)], "nodes of 1 and 2 GPUs"),
    ],
)
def test_detect_refuses_what_no_cluster_describes(
    devices: list, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: gpus(*devices))
    with pytest.raises(ValueError, match=message):
        Cluster.detect()
