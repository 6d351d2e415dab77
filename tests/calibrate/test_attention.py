"""Tables of attention: units, keys, folds, and a fit on a few rows."""

from pathlib import Path

import numpy as np
import pytest

from lts.calibrate.fit import errors, fit
from lts.calibrate.tables.attention import series
from lts.hardware import Cluster

DATA = Path(__file__).parent / "data"
HEADER = (
    "attn_dtype,kv_dtype,batch,q_len,kv_len,"
    "n_heads,n_kv_heads,head_dim,window,time_us\n"
)
H100 = Cluster.preset("h100").chip


def test_a_folder_without_tables_has_no_series(tmp_path):
    assert list(series(tmp_path)) == []


def test_rows_are_read_in_si_units(tmp_path):
    (tmp_path / "context_attention_h200.csv").write_text(
        HEADER + "bf16,fp8,4,512,512,32,8,128,1024,70.5\n"
    )
    (tmp_path / "generation_attention.csv").write_text(
        HEADER + "bf16,bf16,64,1,4096,16,2,64,0,35.25\n"
    )
    found = {(chip, one.key): one for chip, one in series(tmp_path)}
    assert set(found) == {
        ("h200", "prefill_attention/float8_e4m3fn"),
        ("h100", "decode_attention/bfloat16"),
    }
    one = found["h200", "prefill_attention/float8_e4m3fn"]
    assert one.time_s == pytest.approx([70.5e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"batch": 4, "q_len": 512, "kv_len": 512, "n_heads": 32, "n_kv_heads": 8},
        **{"head_dim": 128, "window": 1024, "kv_bytes": 1},
    }
    one = found["h100", "decode_attention/bfloat16"]
    assert one.time_s == pytest.approx([35.25e-6])
    assert {name: float(size[0]) for name, size in one.sizes.items()} == {
        **{"batch": 64, "kv_len": 4096, "n_heads": 16, "n_kv_heads": 2},
        **{"head_dim": 64, "window": 0, "kv_bytes": 2},
    }


def test_points_of_one_shape_are_held_out_together(tmp_path):
    rows = [
        "bf16,bf16,64,1,4096,16,2,64,0,35",
        "bf16,bf16,128,1,32,16,2,64,0,16",
        "bf16,bf16,64,1,4096,16,2,64,128,15",
        "bf16,bf16,64,1,4096,16,4,64,0,55",
    ]
    (tmp_path / "generation_attention.csv").write_text(HEADER + "\n".join(rows))
    ((_, one),) = series(tmp_path)
    a, same, windowed, other = one.shapes
    assert a == same
    assert len({a, windowed, other}) == 3


def test_ungrouped_heads_of_a100_are_a_series_of_their_own(tmp_path):
    rows = "bf16,bf16,64,1,4096,8,8,128,0,700\nbf16,bf16,64,1,4096,8,4,128,0,350\n"
    for ending in "", "_a100":
        (tmp_path / f"generation_attention{ending}.csv").write_text(HEADER + rows)
    found = {(chip, one.key): one.time_s.tolist() for chip, one in series(tmp_path)}
    assert found["a100", "decode_attention/bfloat16_mha"] == [pytest.approx(700e-6)]
    assert found["a100", "decode_attention/bfloat16"] == [pytest.approx(350e-6)]
    assert len(found["h100", "decode_attention/bfloat16"]) == 2


def test_a_fit_leaves_alone_what_its_rows_do_not_tell(tmp_path):
    (tmp_path / "generation_attention.csv").write_text(
        (DATA / "decode_attention.csv").read_text()
    )
    (one,) = [one for _, one in series(tmp_path) if "float8" in one.key]
    assert np.ptp(one.sizes["head_dim"]) == 0
    start = {p.name: p.start for p in one.operator.parameters}
    values = fit(one, H100)
    assert values["block_power"] == pytest.approx(start["block_power"], rel=0.011)
    assert values["window_s"] == pytest.approx(start["window_s"], rel=0.011)
    before = errors(one.operator.time_s(one.sizes, start, H100), one.time_s)
    after = errors(one.operator.time_s(one.sizes, values, H100), one.time_s)
    assert after["median"] < 0.04 < 0.07 < before["median"]
