"""Hand-made plan data, with numbers that are easy to follow through a report."""

from typing import Any

import pytest

from lts.hardware import Cluster


def _part(phase: str, name: str, kind: str, time_s: float) -> dict[str, Any]:
    return dict(phase=phase, name=name, kind=kind, time_s=time_s, states=None)


DEGREES = {"pp": 2, "dp": 4, "tp": 2, "cp": 1, "moe_tp": 1, "moe_ep": 1}


def _assignment(phase: str, states: dict[str, Any]) -> dict[str, Any]:
    return {
        "stages": 2,
        "stages_inside": False,
        "axes": [
            {"name": "x", "size": 2, "inside": False},
            {"name": "y", "size": 4, "inside": True},
        ],
        "roles": {"attention": ["heads", "batch"]},
        "states": {phase: states},
    }


def _phase(batch: int, step_time_s: float, tokens: list[Any]) -> dict[str, Any]:
    return {
        "instances": 1,
        "gpus": 16,
        "requests_per_s": 6.28,
        "degrees": DEGREES,
        "peak_bytes": 60e9,
        "weight_bytes": 40e9,
        "cache_bytes": 15e9,
        "batch": batch,
        "step_time_s": step_time_s,
        "in_specs": [
            ["params/embed", [None, "x"]],
            ["params/layers/0/query", [None, ["x", "y"]]],
            ["params/layers/1/query", [None, ["x", "y"]]],
            ["cache/key", ["y"]],
            ["tokens", tokens],
        ],
        "out_specs": [["out/0", ["y"]]],
        "dims": {
            "params/embed": ["vocab", "hidden"],
            "params/layers/0/query": ["hidden", "heads"],
            "params/layers/1/query": ["hidden", "heads"],
            "cache/key": ["batch", "time"],
            "tokens": ["batch"],
        },
        "donated": ["cache"],
        "weights": "params",
    }


@pytest.fixture
def served() -> dict[str, Any]:
    """Two stages of a mesh x=2 across nodes, y=4 inside, on four nodes of 4 GPUs."""
    attention = ["heads", "batch"]
    states = {
        "attention/query": attention,
        "attention/out": attention,
        "attention/query:": ["heads", None],
    }
    return {
        "format": 2,
        "cluster": Cluster.preset("h100", 4, 4).to_dict(),
        "workload": {
            "input_len": 2048,
            "output_len": 256,
            "ttft_ms": 1000,
            "tpot_ms": None,
            "concurrency": None,
            "routing_skew": 1.0,
        },
        "model": {
            "name": "tiny",
            "layers": "unrolled",
            "weight_dtype": "float8_e4m3fn",
            "kv_dtype": None,
            "config": {"dtype": "bfloat16", "quantization": None},
        },
        "serving": "colocated",
        "degrees": DEGREES,
        "metrics": {
            "step_time_s": 0.0025,
            "ttft_s": 0.25,
            "tpot_s": 0.0125,
            "kv_transfer_s": None,
            "tokens_per_s_per_gpu": 100.5,
            "concurrency": 96,
            "peak_bytes": 60e9,
            "weight_bytes": 40e9,
            "cache_bytes": 15e9,
            "error": 0.091,
            "engine": "middle",
            "breakdown": [
                _part("prefill", "embed", "op", 0.05),
                _part("prefill", "attention/query", "op", 0.10),
                _part("prefill", "attention/out", "op", 0.02),
                _part("prefill", "attention/query:", "value", 0.01),
                _part("prefill", "attention/out -> embed:", "reshard", 0.02),
                _part("decode", "embed", "op", 0.0005),
                _part("decode", "attention/query", "op", 0.0010),
                _part("decode", "attention/out -> embed:", "reshard", 0.0005),
                _part("decode", "from stage to stage", "hand-over", 0.0005),
            ],
        },
        "objective": 100.5,
        "bound": 134.0,
        "gap": 0.25,
        "gap_kind": "relaxed",
        "search": {"method": "random", "seed": 7, "budget": 9000, "evaluations": 8192},
        "phases": {
            "decode": {
                **_phase(48, 0.0025, [None]),
                "assignment": _assignment(
                    "decode",
                    {**states, "embed": ["hidden", None], "last": [None, "batch"]},
                ),
            },
            "prefill": {
                **_phase(8, 0.2, ["y"]),
                "assignment": _assignment(
                    "prefill", {**states, "embed": ["hidden", "batch"]}
                ),
            },
        },
        "phase_order": ["prefill", "decode"],
        "notes": ["decode: a while loop of unknown length counts once"],
    }


@pytest.fixture
def plain(served: dict[str, Any]) -> dict[str, Any]:
    """A plain function on one node of 4 GPUs, priced as given."""
    degrees = {"pp": 1, "dp": 1, "tp": 1, "cp": 4, "moe_tp": 1, "moe_ep": 1}
    return {
        **served,
        "cluster": Cluster.preset("h100", 1, 4).to_dict(),
        "workload": None,
        "model": None,
        "degrees": degrees,
        "metrics": {
            "step_time_s": 60e-6,
            "ttft_s": None,
            "tpot_s": None,
            "kv_transfer_s": None,
            "tokens_per_s_per_gpu": None,
            "concurrency": None,
            "peak_bytes": 3e6,
            "weight_bytes": 2e6,
            "cache_bytes": 0.0,
            "error": 0.035,
            "engine": None,
            "breakdown": [
                _part("step", "mine.py:3 dot_general", "op", 45e-6),
                _part("step", "mine.py:3 dot_general:", "value", 15e-6),
            ],
        },
        "objective": 1 / 60e-6,
        "bound": 1 / 30e-6,
        "gap": 0.5,
        "search": {"method": "price", "seed": 0, "budget": 1, "evaluations": 1},
        "phases": {
            "step": {
                "instances": 1,
                "gpus": 4,
                "requests_per_s": None,
                "degrees": degrees,
                "assignment": {
                    "stages": 1,
                    "stages_inside": True,
                    "axes": [{"name": "x", "size": 4, "inside": True}],
                    "roles": {"mine.py:3 dot_general": ["i"]},
                    "states": {
                        "step": {
                            "mine.py:3 dot_general": ["i"],
                            "x": ["i"],
                            "mine.py:3 dot_general:": [None],
                        }
                    },
                },
                "peak_bytes": 3e6,
                "weight_bytes": 2e6,
                "cache_bytes": 0.0,
                "batch": 1,
                "step_time_s": 60e-6,
                "in_specs": [["x", ["x"]], ["scale", []]],
                "out_specs": [["out", []]],
                "dims": {"x": ["i", "k"]},
                "donated": [],
                "weights": "",
            }
        },
        "phase_order": ["step"],
        "notes": [],
    }


@pytest.fixture
def pooled(served: dict[str, Any]) -> dict[str, Any]:
    """The same model as pools: 3 prefill instances of 2 GPUs, one decode of 8; 2 idle.

    The prefill mesh is y=2, sharding what x and y shard in the decode mesh.
    """
    prefill, decode = (served["phases"][phase] for phase in ("prefill", "decode"))
    axes = [{"name": "y", "size": 2, "inside": True}]
    states = prefill["assignment"]["states"]["prefill"]
    mesh = {
        "stages": 1,
        "stages_inside": True,
        "axes": axes,
        "roles": {"attention": ["heads"]},
        "states": {"prefill": {name: ["heads"] for name in states}},
    }
    reading = {
        "instances": 3,
        "gpus": 2,
        "requests_per_s": 7.5,
        "degrees": {**DEGREES, "pp": 1, "dp": 1},
        "assignment": mesh,
        "peak_bytes": 50e9,
        "cache_bytes": 5e9,
        "in_specs": [["params/embed", [None, "y"]], ["tokens", []]],
        "out_specs": [["out/0", ["y"]]],
    }
    writing = {
        "gpus": 8,
        "degrees": {**DEGREES, "dp": 2},
        "assignment": {
            **decode["assignment"],
            "axes": [
                {"name": "x", "size": 2, "inside": True},
                {"name": "y", "size": 2, "inside": True},
            ],
        },
    }
    return {
        **served,
        "serving": "pools",
        "metrics": {**served["metrics"], "kv_transfer_s": 0.0125},
        "phases": {"prefill": {**prefill, **reading}, "decode": {**decode, **writing}},
    }
