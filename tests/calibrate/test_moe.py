"""Tables of fused mixtures of experts: units, and the routing that was timed."""

from pathlib import Path

import numpy as np
import pytest

from lts.calibrate.fit import errors, held_out_s
from lts.calibrate.tables.moe import balanced_load, power_law_load, series
from lts.hardware import Cluster

DATA = Path(__file__).parent / "data"
HEADER = "dtype,num_tokens,hidden,inter,topk,num_experts,tp,ep,distribution,time_us\n"


def test_a_folder_without_tables_has_no_series(tmp_path):
    assert list(series(tmp_path)) == []


def test_rows_are_read_in_si_units_as_the_work_of_one_rank(tmp_path):
    rows = [
        "bf16,32,2048,512,8,256,4,8,balanced,125.5",
        "fp8_block,64,2048,512,8,256,1,1,balanced,80",
    ]
    (tmp_path / "moe_h200.csv").write_text(HEADER + "\n".join(rows))
    found = {one.key: (chip, one) for chip, one in series(tmp_path)}
    assert set(found) == {"moe/bfloat16", "moe/fp8_block"}
    chip, one = found["moe/bfloat16"]
    assert chip == "h200"
    assert one.time_s == pytest.approx([125.5e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"tokens": 32, "hidden": 2048, "inter": 128},
        **{"rows": 32, "active": 32, "spread": 0},
    }


def test_rows_of_one_layer_and_split_are_held_out_together(tmp_path):
    rows = [
        f"bf16,{tokens},2048,512,8,256,1,{ep},balanced,50"
        for tokens in (1, 2)
        for ep in (1, 2)
    ]
    (tmp_path / "moe.csv").write_text(HEADER + "\n".join(rows))
    ((_, one),) = series(tmp_path)
    assert one.shapes[0] == one.shapes[2] != one.shapes[1] == one.shapes[3]


@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "ranks", "rows", "active"),
    [
        (1, 256, 8, 1, 8, 8),
        (1, 256, 8, 32, 1, 1),
        (16, 256, 8, 8, 16, 16),  # every other one of the 32 experts there
        (32, 256, 8, 32, 8, 8),
        (48, 256, 8, 32, 16, 8),  # tokens 0 to 7 and 32 to 39
        (5, 16, 1, 4, 2, 2),  # 0 and 3 of 0, 3.2, 6.4, 9.6, 12.8
        (1024, 512, 10, 1, 10240, 512),
    ],
)
def test_balanced_routing_is_counted(tokens, experts, topk, ranks, rows, active):
    assert balanced_load(tokens, experts, topk, ranks) == (rows, active, 0)


def test_skewed_routing_keeps_all_pairs_on_one_rank():
    rows, active, spread = power_law_load(1024, 256, 8, 1, 1.2)
    assert rows == pytest.approx(8192)
    assert 200 < active <= 256
    assert 1 < spread < 4


def test_the_rank_that_is_seen_is_the_busiest():
    loads = [power_law_load(4096, 256, 8, ranks, 1.2) for ranks in (1, 4, 16, 64)]
    skews = np.array([load[0] for load in loads]) / (4096 * 8) * [1, 4, 16, 64]
    assert skews[0] == pytest.approx(1)
    assert (np.diff(skews) > 0.2).all()
    assert skews[-1] < 8


def test_no_expert_gets_a_token_twice():
    rows, active, _ = power_law_load(2, 8, 4, 8, 1.2)
    assert rows <= 2
    assert active == 1


def test_a_fit_meets_rows_that_it_did_not_see():
    chip = Cluster.preset("h100").chip
    (one,) = [one for _, one in series(DATA) if one.key == "moe/fp8"]
    assert errors(held_out_s(one, chip, count=2), one.time_s)["median"] < 0.08
