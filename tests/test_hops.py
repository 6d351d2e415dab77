"""The way between two layouts: the right collectives, in an order that XLA follows."""

import itertools

import numpy as np
import pytest

from lts.hops import KINDS, coded_hops, entries_of, every_state, hops
from tests.hop_oracle import steps

SIZES = np.array([2, 4, 3])


def way(source, target, rank: int, axes: int):
    present = np.ones(axes, bool)
    return hops(np.array(source), np.array(target), rank, present)


@pytest.mark.parametrize(("rank", "axes"), [(2, 2), (2, 3), (3, 2)])
def test_every_way_is_that_of_the_lists(rank: int, axes: int) -> None:
    sizes = SIZES[:axes]
    sources, targets = every_state(rank + 2, axes), every_state(rank + 1, axes)
    table: dict[tuple[int, int], list] = {}
    for hop in coded_hops(rank, (True,) * axes):
        for place, taking, held in zip(hop.where, hop.axes, hop.held, strict=True):
            key = divmod(int(place), len(targets))
            on = tuple(i for i in range(axes) if taking >> i & 1)
            parts = held | taking if hop.kind == "slice" else held
            local = 1 / np.prod([sizes[i] for i in range(axes) if parts >> i & 1])
            table.setdefault(key, []).append((hop.kind, on, pytest.approx(local)))
    for i, source in enumerate(sources.tolist()):
        names = [{0: None, rank + 1: "partial"}.get(s, s - 1) for s in source]
        for j, target in enumerate(targets.tolist()):
            wanted = [None if t == 0 else t - 1 for t in target]
            assert steps(names, wanted, rank, sizes) == table.get((i, j), [])


def layout(hop, rank: int = 2) -> list[tuple[str, ...]]:
    return entries_of(hop.states, hop.order, "abc"[: len(hop.states)], rank)


def test_an_inner_axis_is_gathered_at_once() -> None:
    (gather,) = way([1, 1], [1, 0], 2, 2)
    assert gather.kind == "all_gather"
    assert layout(gather) == [("a",), ()]


def test_an_outer_axis_is_gathered_after_a_permute() -> None:
    permute, gather = way([1, 1], [0, 1], 2, 2)
    assert (permute.kind, gather.kind) == ("collective_permute", "all_gather")
    assert layout(permute) == [("b", "a"), ()]
    assert layout(gather) == [("b",), ()]


def test_an_outer_axis_that_comes_is_permuted_into_place() -> None:
    cut, permute = way([0, 1], [1, 1], 2, 2)
    assert (cut.kind, permute.kind) == ("slice", "collective_permute")
    assert layout(cut) == [("b", "a"), ()]
    assert layout(permute) == [("a", "b"), ()]


def test_axes_that_move_together_are_one_exchange() -> None:
    (exchange,) = way([1, 1], [2, 2], 2, 2)
    assert exchange.kind == "all_to_all"
    assert exchange.axes.tolist() == [True, True]


def test_axes_of_two_dims_are_two_gathers() -> None:
    first, second = way([1, 2], [0, 0], 2, 2)
    assert [first.axes.tolist(), second.axes.tolist()] == [[True, False], [False, True]]
    assert first.held.tolist() == [True, True]
    assert second.held.tolist() == [False, True]


def test_partial_sums_scatter_where_they_are_wanted() -> None:
    scatter, reduce = way([3, 3], [2, 0], 2, 2)
    assert (scatter.kind, reduce.kind) == ("reduce_scatter", "all_reduce")
    assert layout(scatter) == [(), ("a",)]
    whole = hops(
        np.array([3, 3]), np.array([2, 0]), 2, np.ones(2, bool), scatters=False
    )
    assert [hop.kind for hop in whole] == ["all_reduce", "slice"]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_way_ends_where_it_should_in_mesh_order(rank: int) -> None:
    for source in itertools.product(range(rank + 2), repeat=3):
        for target in itertools.product(range(rank + 1), repeat=3):
            found = way(source, target, rank, 3)
            assert {hop.kind for hop in found} <= {*KINDS, "slice"}
            if found:
                last = found[-1]
                assert last.states.tolist() == list(target)
                assert all(list(e) == sorted(e) for e in layout(last, rank))
            else:
                assert source == target


def test_absent_axes_take_no_part() -> None:
    assert hops(np.array([1, 3]), np.array([0, 1]), 2, np.zeros(2, bool)) == []


def test_a_permute_goes_over_axes_whose_part_of_the_shard_number_moves() -> None:
    """Of x, y, z turned round, y stays where x and z are equally many."""

    def permuted(sizes: np.ndarray | None) -> list[bool]:
        ends = np.array([1, 1, 1]), np.array([2, 0, 1])
        permute, *_ = hops(*ends, 2, np.ones(3, bool), sizes=sizes)
        assert permute.kind == "collective_permute"
        assert layout(permute) == [("c", "b", "a"), ()]
        return permute.axes.tolist()

    assert permuted(np.array([2, 2, 2])) == [True, False, True]
    assert permuted(np.array([2, 2, 4])) == [True, True, True]
    assert permuted(None) == [True, True, True]


@pytest.mark.parametrize(
    "shape, kinds",
    [
        ((2, 8), ["all_gather", "slice"]),
        ((4, 8), ["slice", "collective_permute", "all_gather"]),
    ],
)
def test_no_parts_are_uneven_on_the_way(shape, kinds) -> None:
    """A dim of 2 cannot be in 4 parts while one axis takes the place of another."""
    found = hops(
        np.array([0, 1]),
        np.array([1, 0]),
        2,
        np.ones(2, bool),
        sizes=np.array([2, 2]),
        shape=shape,
    )
    assert [hop.kind for hop in found] == kinds
    assert layout(found[-1]) == [("a",), ()]
