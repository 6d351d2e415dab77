"""Tables of expert dispatch and combine: units, keys, folds, a fit on few rows."""

from pathlib import Path

import numpy as np
import pytest

from lts.calibrate.fit import errors, fit
from lts.calibrate.tables.deep_ep import series
from lts.hardware import Cluster

DATA = Path(__file__).parent / "data"
HEADER = (
    "impl,source,device,phase,n_nodes,n_gpus,hidden,topk,num_experts,"
    "tokens_per_rank,sms,notify_us,time_us\n"
)


def read(folder, *rows):
    (folder / "moe_a2a.csv").write_text(HEADER + "\n".join(rows))
    return {one.key: (chip, one) for chip, one in series(folder)}


def test_a_folder_without_tables_has_no_series(tmp_path):
    assert list(series(tmp_path)) == []


def test_rows_are_read_in_si_units(tmp_path):
    found = read(
        tmp_path,
        "deepep_normal,s,H200*,dispatch,8,64,7168,8,256,128,20,70.5,226.5",
        "deepep_ll,s,H100,combine,1,8,4096,2,16,64,0,0.0,15.25",
        "other,s,H100,combine,1,8,4096,2,16,64,0,0.0,15.25",
    )
    assert set(found) == {"dispatch/normal_across", "combine/low_latency_inside"}
    chip, one = found["dispatch/normal_across"]
    assert chip == "h100"
    assert one.time_s == pytest.approx([226.5e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"tokens": 128, "hidden": 7168, "topk": 8, "num_experts": 256, "gpus": 8},
        **{"nodes": 8, "node_limit": 4, "sms": 20, "congested": 1},
        **{"bandwidth_bytes_per_s": 40e9},
    }
    _, one = found["combine/low_latency_inside"]
    assert one.sizes["bandwidth_bytes_per_s"] == 340e9
    assert one.sizes["congested"] == 0
    assert one.time_s == pytest.approx([15.25e-6])


def test_layers_are_held_out_inside_a_node_and_numbers_of_tokens_across(tmp_path):
    rows = [
        f"deepep_ll,s,H100,dispatch,{nodes},{nodes * 8},{h},8,256,{tokens},0,0.0,15"
        for nodes in (1, 2)
        for tokens in (8, 16)
        for h in (4096, 7168)
    ]
    found = read(tmp_path, *rows)
    inside = found["dispatch/low_latency_inside"][1].shapes
    assert inside[0] == inside[2] != inside[1] == inside[3]
    across = found["dispatch/low_latency_across"][1].shapes
    assert across[0] == across[1] != across[2] == across[3]


def test_a_fit_meets_its_rows():
    chip = Cluster.preset("h100").chip
    found = {one.key: one for _, one in series(DATA)}
    for key in "dispatch/normal_across", "combine/low_latency_inside":
        one = found[key]
        times = one.operator.time_s(one.sizes, fit(one, chip), chip)
        assert errors(times, one.time_s)["median"] < 0.05
        assert np.quantile(np.abs(times / one.time_s - 1), 0.9) < 0.2
