"""What a change of layout takes, written with lists and one array at a time."""

import itertools
import math
from collections.abc import Sequence

Step = tuple[str, tuple[int, ...], float]
"""Kind, axes, local operand over the global array; a slice has its result instead."""


def steps(
    source: Sequence[int | str | None],
    target: Sequence[int | None],
    rank: int,
    sizes: Sequence[int],
) -> list[Step]:
    """Steps of one array; per axis the dim that it shards, "partial" or None."""
    axes = [i for i, size in enumerate(sizes) if size > 1]
    dims = [[i for i in axes if source[i] == dim] for dim in range(rank)]
    partial = [i for i in axes if source[i] == "partial"]
    found: list[Step] = []

    def local() -> float:
        return 1 / math.prod(sizes[i] for dim in dims for i in dim)

    def permuted(leaving: Sequence[int]) -> None:
        """Bring those that leave innermost, those that stay in mesh order."""

        def place(axis: int, dim: int) -> tuple[int, int]:
            if axis in leaving:
                return 2, axis
            return int(target[axis] != dim), axis

        before = [list(dim) for dim in dims]
        for number, dim in enumerate(dims):
            dim.sort(key=lambda axis: place(axis, number))  # noqa: B023
        changed = {
            axis
            for old, new in zip(before, dims, strict=True)
            for a, b in itertools.combinations(old, 2)
            if new.index(a) > new.index(b)
            for axis in (a, b)
        }
        if changed:
            found.append(("collective_permute", tuple(sorted(changed)), local()))

    def innermost(group: Sequence[int], dim: int) -> None:
        if sorted(dims[dim][-len(group) :]) != sorted(group):
            permuted(group)

    for dim in range(rank):
        group = [i for i in partial if target[i] == dim]
        if group:
            found.append(("reduce_scatter", tuple(group), local()))
            dims[dim] += group
    if group := [i for i in partial if target[i] is None]:
        found.append(("all_reduce", tuple(group), local()))
    sliced = [i for i in axes if source[i] is None and target[i] is not None]
    for i in sliced:
        dims[target[i]].append(i)  # type: ignore[index]
    if sliced:
        found.append(("slice", tuple(sliced), local()))
    for here, there in itertools.permutations(range(rank), 2):
        if group := [i for i in sorted(dims[here]) if target[i] == there]:
            innermost(group, here)
            found.append(("all_to_all", tuple(group), local()))
            dims[here] = [i for i in dims[here] if i not in group]
            dims[there] += group
    for dim in range(rank):
        if group := [i for i in sorted(dims[dim]) if target[i] is None]:
            innermost(group, dim)
            found.append(("all_gather", tuple(group), local()))
            dims[dim] = [i for i in dims[dim] if i not in group]
    permuted([])
    return found
