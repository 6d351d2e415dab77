"""Fits, folds over shapes, and the files of fitted values."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from lts.calibrate.fit import Series, errors, fit, folds, held_out_s, shape_numbers
from lts.calibration import Calibration, Fit, from_dict, load, to_dict
from lts.cost.operators.base import Operator, Parameter
from lts.hardware import Cluster

CHIP = Cluster.preset("h100").chip
LINE = Operator(
    name="line",
    parameters=(
        Parameter(name="start_s", start=1e-6, low=1e-7, high=1e-3),
        Parameter(name="slope_s", start=1e-6, low=1e-9, high=1e-3),
    ),
    time_s=lambda sizes, values, chip: (
        values["start_s"] + values["slope_s"] * sizes["x"]
    ),
    bound_s=lambda sizes, chip: 0 * sizes["x"],
)


@pytest.fixture
def line():
    """20 points of `5e-6 + 3e-7 x`, four of each shape."""
    x = np.arange(20.0)
    return Series(
        key="line",
        operator=LINE,
        sizes={"x": x},
        time_s=5e-6 + 3e-7 * x,
        shapes=np.arange(20) % 5,
    )


def test_a_fit_finds_a_line_and_some_outliers_hardly_move_it(line):
    values = fit(line, CHIP)
    assert values["start_s"] == pytest.approx(5e-6, rel=1e-4)
    assert values["slope_s"] == pytest.approx(3e-7, rel=1e-4)
    spoiled = replace(
        line, time_s=line.time_s * np.where(np.arange(20) % 10 == 3, 3, 1)
    )
    values = fit(spoiled, CHIP)
    assert values["start_s"] == pytest.approx(5e-6, rel=0.02)
    assert values["slope_s"] == pytest.approx(3e-7, rel=0.05)


def test_fitted_values_stay_within_their_bounds(line):
    start, slope = LINE.parameters
    narrow = replace(LINE, parameters=(start, replace(slope, low=5e-7)))
    assert fit(replace(line, operator=narrow), CHIP)["slope_s"] >= 5e-7 * (1 - 1e-9)


def test_a_parameter_that_may_be_negative_is_fitted_by_steps(line):
    start, slope = LINE.parameters
    signed = replace(LINE, parameters=(start, replace(slope, low=-1e-6, high=1e-6)))
    falling = replace(line, operator=signed, time_s=5e-6 - 1e-7 * line.sizes["x"])
    assert fit(falling, CHIP)["slope_s"] == pytest.approx(-1e-7, rel=1e-3)


def test_folds_hold_out_whole_shapes_once_each(line):
    held = np.array(list(folds(line, 3)))
    assert (held.sum(axis=0) == 1).all()
    for one in held:
        assert not set(line.shapes[one]) & set(line.shapes[~one])


def test_held_out_points_are_not_seen_by_their_fit(line):
    shape = 2
    spoiled = replace(line, time_s=line.time_s * np.where(line.shapes == shape, 1.5, 1))
    predicted = held_out_s(spoiled, CHIP)
    own = line.shapes == shape
    assert predicted[own] == pytest.approx(line.time_s[own], rel=1e-3)


def test_errors_are_relative():
    found = errors(np.array([1.1, 1.0, 0.7, 1.2]), np.ones(4))
    assert found["median"] == pytest.approx(0.15)
    assert found["bias"] == pytest.approx(0.05)
    assert found["p90"] == pytest.approx(0.27)


def test_shape_numbers_tell_apart_what_differs_in_any_column():
    numbers = shape_numbers(np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5]))
    assert numbers[0] == numbers[3] and len(set(numbers)) == 3


def test_a_calibration_survives_its_file():
    one = Fit(
        values={"launch_s": 2.1e-6},
        median_error=0.04,
        p90_error=0.1,
        points=12,
        source="made up",
        date="2026-12-01",
    )
    calibration = Calibration(chip="mine", fits={"gemm/bfloat16": one})
    text = yaml.safe_dump(to_dict(calibration))
    assert from_dict(yaml.safe_load(text)) == calibration
    unquoted = text.replace("'2026-12-01'", "2026-12-01")
    assert from_dict(yaml.safe_load(unquoted)) == calibration


def test_bad_values_and_unknown_names_are_refused():
    data = to_dict(load("h100"))
    first = next(iter(data["fits"]))
    data["fits"][first]["values"] = {"launch_s": float("nan")}
    with pytest.raises(ValueError, match=f"{first}: launch_s must be a number"):
        from_dict(data)
    with pytest.raises(ValueError, match="no fitted model 'gemm/int3' for H100-SXM5"):
        load("h100").fit("gemm/int3")
    with pytest.raises(ValueError, match="unknown calibration 'h300'; there are: a100"):
        load("h300")


def test_shipped_values_are_of_the_measured_chips():
    for name in ("h100", "h200", "a100"):
        chip = Cluster.preset(name).chip
        assert (load(name).chip, chip.calibration) == (chip.name, name)
        for one in load(name).fits.values():
            assert 0 < one.median_error <= one.p90_error and one.points > 0
