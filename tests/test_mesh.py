"""Degrees: stages and meshes that use all GPUs, on the right links."""

import math

import pytest

from lts.hardware import Cluster
from lts.mesh import Degrees, MeshAxis, enumerate_degrees, factorisations


@pytest.mark.parametrize(
    ("number", "parts", "expected"),
    [
        (1, 3, [()]),
        (7, 3, [(7,)]),
        (8, 1, [(8,)]),
        (8, 3, [(2, 2, 2), (4, 2), (8,)]),
        (12, 2, [(4, 3), (6, 2), (12,)]),
        (6, 0, []),
    ],
)
def test_factorisations_are_unordered_and_largest_first(
    number, parts, expected
) -> None:
    assert sorted(factorisations(number, parts)) == expected


def test_factorisations_multiply_back() -> None:
    for number in range(1, 65):
        found = list(factorisations(number, 3))
        assert len(set(found)) == len(found)
        for sizes in found:
            assert math.prod(sizes) == number
            assert list(sizes) == sorted(sizes, reverse=True)


@pytest.mark.parametrize("shape", ["1x1", "1x8", "2x8", "3x8", "8x8", "32x8", "1x6"])
@pytest.mark.parametrize("layers", [1, 6, 32])
def test_degrees_use_all_gpus_in_whole_stages(shape: str, layers: int) -> None:
    cluster = Cluster.parse(f"h100:{shape}")
    found = enumerate_degrees(cluster, num_layers=layers)
    assert len(set(found)) == len(found)
    assert len({len(d.axes) for d in found}) == 1
    assert any(d.stages == 1 for d in found)
    for degrees in found:
        assert degrees.num_gpus == cluster.num_gpus
        assert layers % degrees.stages == 0
        assert len(degrees.axes) <= 3
        near = math.prod(a.size for a in degrees.axes if a.inside)
        far = math.prod(a.size for a in degrees.axes if not a.inside)
        assert cluster.gpus_per_node % near == 0
        assert cluster.nodes % far == 0
        names = [axis.name for axis in degrees.axes]
        assert len(set(names)) == len(names)


def test_axes_across_nodes_stand_outside_those_inside() -> None:
    for degrees in enumerate_degrees(Cluster.parse("h100:4x8"), num_layers=8):
        inside = [axis.inside for axis in degrees.axes if axis.size > 1]
        assert inside == sorted(inside)


def test_a_node_of_eight_has_one_finest_mesh() -> None:
    (degrees,) = enumerate_degrees(Cluster.parse("h100:1x8"))
    assert degrees.shape == {"x": 2, "y": 2, "z": 2}


def test_two_nodes_have_the_finest_mesh_of_three_axes() -> None:
    (degrees,) = enumerate_degrees(Cluster.parse("h100:2x8"))
    assert degrees.stages == 1
    across = [axis.size for axis in degrees.axes if not axis.inside]
    assert across == [2]
    assert sorted(axis.size for axis in degrees.axes if axis.inside) == [2, 4]


def test_stages_take_whole_nodes_then_parts_of_one() -> None:
    found = enumerate_degrees(Cluster.parse("h100:2x8"), num_layers=16)
    assert sorted(d.stages for d in found) == [1, 2, 4, 8, 16]
    assert not any(d.stages_inside for d in found)
    two = next(d for d in found if d.stages == 2)
    assert all(axis.inside for axis in two.axes)
    inside = enumerate_degrees(Cluster.parse("h100:1x8"), num_layers=4)
    assert all(d.stages_inside for d in inside)


def test_stages_must_divide_the_layers() -> None:
    found = enumerate_degrees(Cluster.parse("h100:1x8"), num_layers=6)
    assert sorted({d.stages for d in found}) == [1, 2]


def test_one_gpu_has_one_mesh_of_unit_axes() -> None:
    (degrees,) = enumerate_degrees(Cluster.parse("h100:1x1"))
    assert degrees.mesh_size == degrees.num_gpus == 1


def test_sizes_multiply_over_axes_and_stages() -> None:
    axes = (
        MeshAxis(name="x", size=2, inside=False),
        MeshAxis(name="y", size=4, inside=True),
    )
    degrees = Degrees(stages=3, axes=axes)
    assert degrees.shape == {"x": 2, "y": 4}
    assert (degrees.mesh_size, degrees.num_gpus) == (8, 24)
