"""The table of models: its figures, and how two totals come about."""

import importlib.util
import json
from pathlib import Path

import pytest

from lts.models import load

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def table():
    path = ROOT / "experiments" / "model_table.py"
    spec = importlib.util.spec_from_file_location("model_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_of_configs_becomes_rows_and_refusals(
    table, tmp_path, monkeypatch, capsys
):
    configs = ROOT / "tests" / "models" / "configs"
    argv = ["model_table.py", "--configs", str(configs), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", argv)
    table.main()
    shown = capsys.readouterr().out
    assert "refused: config of 'glm-5': model_type 'glm_moe_dsa'" in shown
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["models"], found["loaded"], found["refused"]) == (26, 22, 4)
    assert found["totals_compared"] == 22 and found["totals_within_1_percent"] == 21
    assert found["mixtral-8x7b-v0.1/active"] == 12879925248
    assert found["mixtral-8x7b-v0.1/published_active"] == 12.9e9
    difference = found["llama-4-scout-17b-16e-instruct/total_difference"]
    assert difference == pytest.approx(107.77 / 109 - 1, abs=1e-4)
    assert "vision tower" in found["llama-4-scout-17b-16e-instruct/remark"]
    rows = (tmp_path / "table.csv").read_text().splitlines()
    assert len(rows) == 27 and rows[0].startswith("model,total,active,kv_bytes")


def test_a_name_is_matched_with_the_longest_published_one(table):
    assert table.published("Qwen3-32B-FP8") is table.PUBLISHED["qwen3-32b-fp8"]
    assert (
        table.published("meta-llama--Meta-Llama-3.1-8B")
        is (table.PUBLISHED["llama-3.1-8b"])
    )
    assert table.published("something-else") is None


def test_the_terms_of_moe_1_6t_are_shown(table):
    lines = table.arithmetic(load("moe-1.6t").config)
    assert lines[0] == "moe-1.6t" and lines[-1].endswith(" 1,613,390,234,112")
    assert "88 layers x 384 experts x 3 x 7680 x 2048" in lines[1]
    assert lines[1].endswith(f" {88 * 384 * 3 * 7680 * 2048:,}")
