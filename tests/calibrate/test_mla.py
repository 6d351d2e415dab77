"""Tables of latent attention: units, keys, folds, and a fit on a few rows."""

from pathlib import Path

import pytest

from lts.calibrate.fit import errors, fit
from lts.calibrate.tables.mla import series
from lts.hardware import Cluster

DATA = Path(__file__).parent / "data"
HEADER = "phase,kv_dtype,batch,q_len,kv_len,n_heads_local,time_us\n"


def test_a_folder_without_tables_has_no_series(tmp_path):
    assert list(series(tmp_path)) == []


def test_rows_are_read_in_si_units(tmp_path):
    rows = ["context,bf16,4,256,256,16,23.75", "generation,fp8,32,1,8192,8,71.5"]
    (tmp_path / "mla.csv").write_text(HEADER + "\n".join(rows))
    found = {one.key: one for chip, one in series(tmp_path) if chip == "h100"}
    assert set(found) == {"mla_context/bfloat16", "mla_generation/float8_e4m3fn"}
    one = found["mla_context/bfloat16"]
    assert one.time_s == pytest.approx([23.75e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"batch": 4, "q_len": 256, "kv_len": 256, "n_heads": 16, "kv_bytes": 2}
    }
    one = found["mla_generation/float8_e4m3fn"]
    assert one.time_s == pytest.approx([71.5e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"batch": 32, "kv_len": 8192, "n_heads": 8, "kv_bytes": 1}
    }


def test_all_points_of_a_number_of_heads_are_held_out_together(tmp_path):
    rows = [f"generation,bf16,{b},1,64,{h},15" for b in (1, 2) for h in (8, 16)]
    (tmp_path / "mla.csv").write_text(HEADER + "\n".join(rows))
    ((_, one),) = series(tmp_path)
    assert one.shapes[0] == one.shapes[2] != one.shapes[1] == one.shapes[3]


def test_a_fit_meets_float8_rows(tmp_path):
    (tmp_path / "mla.csv").write_text((DATA / "mla.csv").read_text())
    chip = Cluster.preset("h100").chip
    for key in "mla_context/float8_e4m3fn", "mla_generation/float8_e4m3fn":
        (one,) = [one for _, one in series(tmp_path) if one.key == key]
        found = one.operator.time_s(one.sizes, fit(one, chip), chip)
        assert errors(found, one.time_s)["median"] < 0.06
