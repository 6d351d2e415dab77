"""Examples and experiments run as their docstrings say."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def test_a_function_of_ones_own_is_sharded_as_predicted():
    text = run("examples/own_function.py")
    error = float(text.split("largest relative error: ")[1].split()[0])
    assert error < 1e-4
    assert "as predicted: True" in text


def test_a_function_of_ones_own_is_searched_from_the_command_line():
    options = ("--cluster", "h100:1x8", "--method", "random", "--budget", "8", "--json")
    text = run("-m", "lts", "search", "examples/own_function.py:step", *options)
    specs = json.loads(text)["phases"]["step"]["in_specs"]
    assert [path for path, _ in specs] == ["x", "up", "down"]


def test_experts_of_ones_own_travel_as_planned():
    text = run("examples/own_experts.py")
    error = float(text.split("largest relative error: ")[1].split()[0])
    assert error < 1e-4
    rows = [line for line in text.splitlines() if line.startswith("all_")]
    assert [row.split()[0] for row in rows] == ["all_reduce", *["all_to_all"] * 2]
    for row in rows:  # predicted once, emitted once
        assert row.endswith(" 1 1") and "('gpu',)" in row


def test_headline_writes_its_figures(tmp_path):
    run("experiments/headline.py", "--out", str(tmp_path), "--quick", "--budget", "64")
    summary = json.loads((tmp_path / "summary.json").read_text())
    name = "llama-3.1-8b h100:1x8 chat colocated"
    methods = ("random", "annealing", "megatron", "megatron_grid", "learn_to_shard")
    for method in methods:
        assert 0 < summary[f"{name}/{method}/median"] <= summary[f"{name}/bound"]
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 6
    assert (tmp_path / "headline.png").read_bytes()[:4] == b"\x89PNG"
