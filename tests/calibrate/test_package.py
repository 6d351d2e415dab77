"""Look-up in tables: each point from the others."""

import numpy as np
import pytest

from lts.calibrate import package
from lts.calibrate.fit import Series
from lts.cost.operators.elementwise import ELEMENTWISE
from lts.cost.operators.gemm import GEMMS


def series_of(points):
    m, n, k = np.array(points, float).T
    return Series(
        key="gemm/bfloat16",
        operator=GEMMS["bfloat16"],
        sizes={"m": m, "n": n, "k": k},
        time_s=np.ones(len(m)),
        shapes=np.arange(len(m)),
    )


@pytest.fixture
def table(monkeypatch):
    """Times `m^0.5 n k` ns on a grid, but 7 s at one point."""
    grid = np.stack(np.meshgrid([1, 2, 8, 64], [128, 512], [256, 1024]), -1)
    grid = grid.reshape(-1, 3).astype(float)
    times = grid[:, 0] ** 0.5 * grid[:, 1] * grid[:, 2] * 1e-9
    times[(grid == [8, 128, 256]).all(axis=1)] = 7.0
    monkeypatch.setattr(package, "_points", lambda *_: (grid, times))


def test_a_point_is_interpolated_without_itself(table):
    found = package.leave_one_out_s("h100", series_of([[8, 128, 256], [4, 512, 1024]]))
    assert found[0] == pytest.approx(8**0.5 * 128 * 256 * 1e-9)  # not 7 s
    assert found[1] == pytest.approx(2 * 512 * 1024 * 1e-9)


def test_the_closest_pair_of_neighbours_decides(table):
    # along m between 2 and 8, both of n = 128: closer than along n
    (found,) = package.leave_one_out_s("h100", series_of([[8, 256, 1024]]))
    assert found == pytest.approx(8**0.5 * 256 * 1024 * 1e-9)


def test_no_neighbours_give_nan_and_no_table_none(table):
    found = package.leave_one_out_s("h100", series_of([[1, 64, 256], [999, 128, 256]]))
    assert np.isnan(found).all()
    one = Series(
        key="elementwise/add",
        operator=ELEMENTWISE["add"],
        sizes={"rows": np.ones(1), "width": np.ones(1)},
        time_s=np.ones(1),
        shapes=np.zeros(1, int),
    )
    assert package.leave_one_out_s("h100", one) is None
