"""Measured matrix products: units, keys, what is held out together."""

from pathlib import Path

import numpy as np
import pytest

from lts.calibrate.tables.gemm import series

DATA = Path(__file__).with_name("data")


def test_a_folder_becomes_series_in_seconds():
    found = {(name, one.key): one for name, one in series(DATA)}
    assert list(found) == [
        ("h100", "gemm/bfloat16"),
        ("h100", "gemm/fp8"),
        ("h100", "gemm/fp8_block"),
        ("h200", "gemm/bfloat16"),
        ("h200", "gemm/fp8"),
        ("a100", "gemm/bfloat16"),
    ]
    first = found["h100", "gemm/bfloat16"]
    assert len(first.time_s) == 48
    # bf16,1,3072,10240,27.307
    assert [first.sizes[size][1] for size in ("m", "n", "k")] == [1, 3072, 10240]
    assert first.time_s[1] == pytest.approx(27.307e-6)


def test_rows_of_one_weight_matrix_are_one_shape():
    one = next(one for _, one in series(DATA))
    matrices = np.stack([one.sizes["n"], one.sizes["k"]], axis=1)
    for shape in np.unique(one.shapes):
        assert len(np.unique(matrices[one.shapes == shape], axis=0)) == 1
    assert len(np.unique(one.shapes)) == len(np.unique(matrices, axis=0))


def test_an_empty_folder_has_no_series_and_an_empty_file_is_named(tmp_path):
    assert list(series(tmp_path)) == []
    (tmp_path / "gemm.csv").write_text("dtype,m,n,k,time_us\n")
    with pytest.raises(ValueError, match=r"gemm\.csv has no rows"):
        list(series(tmp_path))
