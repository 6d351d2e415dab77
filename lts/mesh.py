"""How many GPUs go to pipeline stages and to each mesh axis, and on which link.

A `Degrees` is a number of pipeline stages and an ordered mesh of sized axes, outermost
first, for one stage. Every axis lies on one link level: inside a node, or across nodes.
A tensor-parallel group of 16 over two nodes is then two axes with the same role, and is
priced as one hierarchical collective.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lts.hardware import Cluster

AXIS_NAMES = ("x", "y", "z", "w", "v", "u")
MAX_AXES = 3
"""Sized axes of the search: a fourth gained under 0.1% in our experiments."""


@dataclass(frozen=True, kw_only=True)
class MeshAxis:
    """A named mesh axis; `inside` says that it lies inside one node."""

    name: str
    size: int
    inside: bool


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Pipeline stages, and the mesh of one stage (outermost axis first).

    `stages_inside`: whether a stage hands over to the next inside one node.
    """

    stages: int
    axes: tuple[MeshAxis, ...]
    stages_inside: bool = False

    @property
    def shape(self) -> dict[str, int]:
        """Axis sizes by name."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def mesh_size(self) -> int:
        """GPUs of one stage."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def num_gpus(self) -> int:
        """GPUs of all stages."""
        return self.stages * self.mesh_size


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Unordered factorisations into at most `parts` factors above 1, largest first.

    >>> sorted(factorisations(8, 2))
    [(4, 2), (8,)]
    """

    def down(rest: int, room: int, top: int) -> Iterator[tuple[int, ...]]:
        if rest == 1:
            yield ()
        elif room:
            for first in range(min(rest, top), 1, -1):
                if rest % first == 0:
                    for others in down(rest // first, room - 1, first):
                        yield (first, *others)

    yield from down(number, parts, number)


def _refines(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Whether multiplying factors of `fine` together can give `coarse`."""
    if not fine:
        return all(size == 1 for size in coarse)
    first, rest = fine[0], fine[1:]
    return any(
        size % first == 0
        and _refines(rest, (*coarse[:i], size // first, *coarse[i + 1 :]))
        for i, size in enumerate(coarse)
    )


def _meshes(nodes: int, gpus: int, max_axes: int) -> list[tuple[tuple, tuple]]:
    """Finest (across nodes, inside) factorisations with at most `max_axes` axes."""
    every = [
        (outer, inner)
        for outer in factorisations(nodes, max_axes)
        for inner in factorisations(gpus, max_axes - len(outer))
    ]
    return [
        coarse
        for coarse in every
        if not any(
            fine != coarse and all(map(_refines, fine, coarse)) for fine in every
        )
    ]


def enumerate_degrees(
    cluster: Cluster, *, num_layers: int = 1, max_axes: int = MAX_AXES
) -> tuple[Degrees, ...]:
    """Every number of stages and finest mesh that uses all GPUs of a cluster.

    Stages take whole nodes first, then equal parts of a node; they divide `num_layers`.
    Axes of coarser meshes are products of these, so nothing is lost by leaving them.
    All results have the same number of axes: the missing ones have size 1.
    """
    found = []
    for stages in range(1, min(num_layers, cluster.num_gpus) + 1):
        if num_layers % stages:
            continue
        if cluster.nodes % stages == 0:
            nodes, gpus = cluster.nodes // stages, cluster.gpus_per_node
        elif (
            stages % cluster.nodes == 0
            and cluster.gpus_per_node % (stages // cluster.nodes) == 0
        ):
            nodes, gpus = 1, cluster.gpus_per_node // (stages // cluster.nodes)
        else:
            continue
        inside = cluster.nodes == 1  # some hand-over crosses nodes, if there are any
        for outer, inner in _meshes(nodes, gpus, max_axes):
            sizes = [(size, False) for size in outer] + [(size, True) for size in inner]
            found.append((stages, inside, sizes))
    width = max(1, *(len(sizes) for *_, sizes in found))
    return tuple(
        Degrees(
            stages=stages,
            stages_inside=inside,
            axes=tuple(
                MeshAxis(name=AXIS_NAMES[i], size=size, inside=within)
                for i, (size, within) in enumerate(
                    [(1, True)] * (width - len(sizes)) + sizes
                )
            ),
        )
        for stages, inside, sizes in found
    )
