"""The experiments on measured operators: fits written, errors tabulated."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from lts.calibrate import package
from lts.calibration import from_dict
from lts.cost.operators.elementwise import elementwise_time_s
from lts.hardware import Cluster

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "calibrate" / "data"
VALUES = {
    "launch_s": 2e-6,
    "element_s": 4e-10,
    "rows_per_sm": 1.5,
    "in_l2": 0.4,
    "l2_bytes_per_s": 3e10,
    "hbm": 0.8,
    "norm": 2.0,
}


def loaded(name):
    path = ROOT / "experiments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def accuracy():
    return loaded("silicon_accuracy")


@pytest.fixture
def rope_folder(tmp_path):
    """Made-up rows whose times are those of `VALUES`, 10% slower."""
    folder = tmp_path / "data"
    folder.mkdir()
    chip = Cluster.preset("h100").chip
    lines = ["device,op,tokens,width,min_bytes,split,time_us"]
    for rows in (1, 64, 512, 4096):
        for width in (1024, 2048, 4096, 8192, 16384):
            time_s = elementwise_time_s(
                rows, width, kind="rope", values=VALUES, chip=chip
            )
            lines.append(f"h100,rope,{rows},{width},0,train,{time_s * 1.1e6}")
    (folder / "elementwise_vidur.csv").write_text("\n".join(lines) + "\n")
    return folder


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["experiment", *map(str, arguments)])
    module.main()


def test_fits_are_written_in_the_schema_and_others_kept(
    rope_folder, tmp_path, monkeypatch, capsys
):
    fit_silicon = loaded("fit_silicon")
    out = tmp_path / "calibrations"
    out.mkdir()
    (out / "h100.yaml").write_text(
        "chip: H100-SXM5-80GB\nfits: {gemm/mine: {values: {launch_s: 1.0e-6}, "
        "median_error: 0.1, p90_error: 0.2, points: 1, source: me, date: 2026-01-01}}"
    )
    knobs = ("--data", rope_folder, "--out", out, "--date", "2026-12-01")
    run(fit_silicon, monkeypatch, *knobs, "--only", "elementwise")
    assert "of     20 points held out" in capsys.readouterr().out
    found = from_dict(fit_silicon.yaml.safe_load((out / "h100.yaml").read_text()))
    assert set(found.fits) == {"gemm/mine", "elementwise/rope"}
    rope = found.fit("elementwise/rope")
    assert (rope.points, rope.date) == (20, "2026-12-01")
    assert rope.median_error < 0.02
    assert rope.values["launch_s"] == pytest.approx(2.2e-6, rel=0.02)
    assert all(value == float(f"{value:.3e}") for value in rope.values.values())
    assert "vidur" in rope.source
    run(fit_silicon, monkeypatch, *knobs)
    found = from_dict(fit_silicon.yaml.safe_load((out / "h100.yaml").read_text()))
    assert set(found.fits) == {"elementwise/rope"}


def test_a_folder_becomes_a_table_of_errors(accuracy, tmp_path, monkeypatch, capsys):
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for path in DATA.glob("gemm*.csv"):
        shutil.copy(path, folder)
    run(accuracy, monkeypatch, "--data", folder, "--out", out, "--quick")
    found = json.loads((out / "summary.json").read_text())
    assert found["series_without_parameters"] == []
    assert found["h100/gemm/bfloat16/shipped/points"] == 48
    own = found["h100/gemm/bfloat16/shipped/median"]
    assert 0.01 < own < 0.05
    assert found["h100/gemm/bfloat16/roofline/median"] > 1.2 * own
    assert found["h100/gemm/fp8/roofline/median"] > 0.3
    assert 0.01 < found["h200/gemm/bfloat16/from_H100/median"] < 0.08
    assert not any("held_out" in key or "h100/from" in key for key in found)
    lines = (out / "errors.csv").read_text().splitlines()
    # shipped and roofline of six series, H200 from H100 of two
    assert lines[0] == "chip,key,way,points,median,p90,bias" and len(lines) == 15
    assert (out / "ratios.png").stat().st_size > 10_000
    assert f"{own:7.1%}" in capsys.readouterr().out


def test_folds_and_pools(accuracy, rope_folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(accuracy, monkeypatch, "--data", rope_folder, "--out", out)
    found = json.loads((out / "summary.json").read_text())
    assert found["h100/elementwise/rope/held_out/median"] < 0.02
    pooled = found["h100/elementwise/held_out/median"]
    assert pooled == found["h100/elementwise/rope/held_out/median"]
    assert found["h100/elementwise/rope/shipped/median"] > 0.02


def test_a_missing_package_is_one_line(
    accuracy, rope_folder, tmp_path, monkeypatch, capsys
):
    shutil.copy(DATA / "gemm_a100.csv", rope_folder)
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    package._points.cache_clear()
    knobs = ("--data", rope_folder, "--out", tmp_path, "--quick", "--package")
    with pytest.raises(SystemExit):
        run(accuracy, monkeypatch, *knobs)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "aiconfigurator-core is not installed: pip install" in last


def test_an_unknown_folder_is_one_line(accuracy, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(accuracy, monkeypatch, "--data", tmp_path, "--out", tmp_path)
    assert "no measured tables in" in capsys.readouterr().err
