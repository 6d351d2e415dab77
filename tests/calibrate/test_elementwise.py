"""Measured elementwise kernels: units, and that a fit finds what made the rows."""

import numpy as np
import pytest

from lts.calibrate.fit import errors, fit
from lts.calibrate.tables.elementwise import series
from lts.cost.operators.elementwise import elementwise_time_s
from lts.hardware import Cluster

VALUES = {
    "launch_s": 2e-6,
    "element_s": 4e-10,
    "rows_per_sm": 1.5,
    "in_l2": 0.4,
    "l2_bytes_per_s": 3e10,
    "hbm": 0.8,
    "norm": 2.0,
}


@pytest.fixture
def folder(tmp_path):
    """Made-up rows in the columns of the tables; times of `VALUES`."""
    chip = Cluster.preset("h100").chip
    lines = ["device,op,tokens,width,min_bytes,split,time_us"]
    for rows in (1, 16, 128, 512, 1024, 4096):
        for width in (1024, 2048, 4096, 8192, 16384):
            time_s = elementwise_time_s(
                rows, width, kind="rope", values=VALUES, chip=chip
            )
            lines.append(f"h100,rope,{rows},{width},0,train,{time_s * 1e6}")
    lines.append("a100,add,1,4096,24576,train,2.0")
    (tmp_path / "elementwise_vidur.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_folder_becomes_series_in_seconds(folder):
    (chip, add), (other, rope) = series(folder)
    assert (chip, add.key, other, rope.key) == (
        "a100",
        "elementwise/add",
        "h100",
        "elementwise/rope",
    )
    assert add.time_s == pytest.approx([2e-6])
    assert (add.sizes["rows"][0], add.sizes["width"][0]) == (1, 4096)
    assert len(np.unique(rope.shapes)) == 5


def test_a_fit_finds_the_values_that_made_the_rows(folder):
    rope = [one for _, one in series(folder)][1]
    chip = Cluster.preset("h100").chip
    values = fit(rope, chip)
    time_s = rope.operator.time_s(rope.sizes, values, chip)
    assert errors(time_s, rope.time_s)["p90"] < 1e-3
    assert values["launch_s"] == pytest.approx(2e-6, rel=0.01)
    assert values["hbm"] == pytest.approx(0.8, rel=0.02)
    assert values["rows_per_sm"] == pytest.approx(1.5, rel=0.05)


def test_a_folder_without_the_file_has_no_series(tmp_path):
    assert list(series(tmp_path)) == []
