"""`lts calibrate`: the CPU devices of the tests are measured with a few tiny sizes."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml

from lts.api import search
from lts.calibrate import machine
from lts.calibrate.probes import families
from lts.calibrate.probes.base import Family, Probe
from lts.calibration import load
from lts.cli import main
from lts.hardware import Cluster

KEYS = ("elementwise/add", "gemm/bfloat16", "all_reduce/nccl/8", "p2p/nvlink")


def few(devices: Any, *, quick: bool, fp8: bool) -> tuple[Family, ...]:
    """Three small sizes of some operators, two of attention."""
    assert quick and not fp8
    decode = "decode_attention/bfloat16"
    found = {f.key: f for f in families(devices, quick=False, fp8=fp8)}
    return tuple(
        replace(
            found[key],
            probes=tuple(sorted(found[key].probes, key=lambda probe: probe.amount))[
                : 2 if key == decode else 3
            ],
        )
        for key in (KEYS[0], KEYS[1], decode, *KEYS[2:])
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "families", few)
    # as if started without a choice of platforms, which tests have made
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)


@pytest.mark.usefixtures("quick")
def test_calibrate_writes_a_cluster_that_a_search_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    asked = ["calibrate", "--quick", "--out", str(out), "--json"]
    assert main(asked) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert printed.err == ""
    assert data["files"] == [str(out), str(tmp_path / "mine.calibration.yaml")]
    assert "of no use for planning GPUs" in data["notes"][0]
    assert "cpu" in data["notes"][0]
    assert [row["key"] for row in data["operators"]] == [
        "elementwise/add",
        "gemm/bfloat16",
        "decode_attention/bfloat16",
        "all_reduce/nccl/8",
        "p2p/nvlink",
    ]
    for row in data["operators"]:
        assert row["best_rate"] > 0
        for point in row["points"]:
            assert 0 < point["time_s"] < 10 and point["predicted_s"] > 0
        assert len(row["points"]) == (2 if "attention" in row["key"] else 3)
    attention = data["operators"][2]
    assert attention["median_error"] is None
    assert "decode_attention/bfloat16 is not fitted: 2 points" in data["notes"]

    cluster = Cluster.load(out)
    assert (cluster.name, cluster.gpus_per_node) == ("mine", len(jax.devices()))
    assert cluster.to_dict() == data["cluster"]
    fits = load(cluster.chip.calibration).fits
    assert set(fits) == set(KEYS)
    assert {fit.date for fit in fits.values()} == {date.today().isoformat()}
    assert "lts calibrate on cpu" in fits["gemm/bfloat16"].source
    assert "no specification known" in cluster.chip.source

    def step_s() -> float:
        cluster = Cluster.load(out)
        plan = search(two_products, ARGS, cluster=cluster, method="random", budget=8)
        return plan.metrics.step_time_s

    before_s = step_s()
    # what was fitted is what is priced
    beside = tmp_path / "mine.calibration.yaml"
    slower = yaml.safe_load(beside.read_text())
    for name in KEYS[:2]:
        slower["fits"][name]["values"]["launch_s"] += 1.0
    beside.write_text(yaml.safe_dump(slower))
    assert step_s() > before_s + 1.9


def two_products(x: jax.Array, w: jax.Array) -> jax.Array:
    """Two products that cannot be one."""
    return jnp.tanh(x @ w) @ w


ARGS = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2


@pytest.mark.usefixtures("quick")
def test_the_table_says_what_was_measured_and_that_cpus_are_of_no_use(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clock(family: Family, probe: Probe, way: str, **limits: float) -> float:
        return 1e-4 + probe.amount / {"FLOP": 2e12, "B": 3e9}[family.unit]

    monkeypatch.setattr(machine, "Stopwatch", lambda: clock)
    out = tmp_path / "mine.yaml"
    assert main(["calibrate", "--quick", "--name", "desk", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8 x cpu\n")
    table = {line.split()[0]: line for line in text.splitlines() if line}
    assert {"elementwise/add", "gemm/bfloat16", "all_reduce/nccl/8"} <= set(table)
    assert table["elementwise/add"].split()[1:3] == ["3", "jnp"]
    # 2 MB in 0.8 ms
    assert "2.62 GB/s" in table["elementwise/add"]
    assert "TFLOP/s" in table["gemm/bfloat16"] and "GB/s" in table["p2p/nvlink"]
    assert table["gemm/bfloat16"].count("%") == 3
    assert table["decode_attention/bfloat16"].split()[-2:] == ["-", "-"]
    assert "note: measured on cpu devices, which are no GPUs: of no use for" in text
    assert f"plan with --cluster {out}" in text
    assert Cluster.load(out).name == "desk"


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "the following arguments are required: --out"),
        (
            ["--out", "mine.json"],
            "mine.json: a cluster file's name ends in .yaml",
        ),
        (
            ["--out", "none/mine.yaml"],
            "cannot write cluster file 'none/mine.yaml': No such file or directory; "
            "give --out a file in a folder that exists and that you may write to",
        ),
    ],
)
def test_bad_places_are_refused_before_anything_is_measured(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(machine, "families", None)
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_calibrate_leaves_the_platform_to_jax(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    chosen = []
    monkeypatch.setattr(jax.config, "update", lambda *pair: chosen.append(pair))
    assert main(["calibrate", "--out", str(tmp_path / "x.json")]) == 2
    assert chosen == []
    assert main(["clusters"]) == 0
    assert chosen == [("jax_platforms", "cpu")]
