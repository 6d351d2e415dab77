import pytest

from lts.hlo_groups import parse_groups, varying_axes


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [(0, 1), (2, 3)]),
        ("replica_groups=[2,4]<=[8], x", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (
            "replica_groups=mesh['dp'=2,'tp'=4] {'dp'}, x",
            [(0, 4), (1, 5), (2, 6), (3, 7)],
        ),
        (
            "replica_groups=mesh['a'=2,'b'=4] {'a','b':(1)2}, x",
            [(0, 2, 4, 6), (1, 3, 5, 7)],
        ),
        (
            "replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}, x",
            [(0, 1), (2, 3), (4, 5), (6, 7)],
        ),
        (
            "replica_groups=mesh['a'=2,'b'=3], device_ids=([3,2]T(1,0)) {'a'}, x",
            [(0, 1), (2, 3), (4, 5)],
        ),
        (
            "replica_groups=mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}",
            [(0, 2), (1, 3)],
        ),
        ("replica_groups={}, x", [(0, 1, 2, 3, 4, 5, 6, 7)]),
        ("source_target_pairs={{0,1},{1,0}}, x", [(0, 1), (1, 0)]),
        ("source_target_pairs={}", []),
    ],
)
def test_every_spelling_of_groups_is_read(
    attributes: str, groups: list[tuple[int, ...]]
) -> None:
    assert parse_groups(attributes, 8) == groups


def test_text_without_groups_is_rejected() -> None:
    with pytest.raises(ValueError, match="no replica groups or source-target pairs"):
        parse_groups("dimensions={0}", 8)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([(0, 4), (1, 5), (2, 6), (3, 7)], ("dp",)),
        ([(0, 1, 2, 3), (4, 5, 6, 7)], ("tp",)),
        ([(0, 2), (1, 3), (4, 6), (5, 7)], ("tp",)),  # half of the axis
        ([(0, 1), (4, 4)], ("tp",)),
        ([(0, 5), (1, 4)], ("dp", "tp")),
        ([(0,), (1,)], ()),
        ([], ()),
    ],
)
def test_axes_are_those_whose_coordinate_varies_inside_a_group(
    groups: list[tuple[int, ...]], axes: tuple[str, ...]
) -> None:
    assert varying_axes(groups, {"dp": 2, "tp": 4}, "x") == axes


def test_device_outside_the_mesh_is_rejected() -> None:
    with pytest.raises(ValueError, match="'x' names device 8, but mesh .* 8 devices"):
        varying_axes([(0, 8)], {"dp": 2, "tp": 4}, "x")
