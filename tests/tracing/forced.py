"""A traced function under a layout of the test's choice, applied on 8 CPU devices."""

import functools
import operator
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from lts.apply import jitted
from lts.assignment import Assignment
from lts.mesh import Degrees, MeshAxis
from lts.specs import phase_specs
from lts.tracing import link_phases, trace_program

COLLECTIVE = re.compile(
    r"= \S+ (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\("
)


class Forced:
    """A function whose ops, and the values around them, are split as a test says.

    Args:
      sizes: per mesh axis, in order: its size, and the extent of the op's factor that
        it shards. Values take the factor with the label of an op's.
    """

    def __init__(self, function: Any, args: Any, sizes: Mapping[int, int]) -> None:
        self.args = args
        traced = trace_program(function, args)
        graph = link_phases({"step": traced.graph})["step"]
        self.graph = graph
        chosen = []
        for extent in sizes.values():
            labels = {
                f.label for op in graph.ops for f in op.factors if f.size == extent
            }
            chosen.append(labels)
        states = [
            np.array([_state(node, labels) for labels in chosen], np.int64)
            for node in graph.nodes
        ]
        axes = tuple(
            MeshAxis(name=f"axis{i}", size=n, inside=True) for i, n in enumerate(sizes)
        )
        used = functools.reduce(operator.mul, sizes, 1)
        devices = np.array(jax.devices()[:used]).reshape(tuple(sizes))
        self.mesh = Mesh(
            devices,
            tuple(axis.name for axis in axes),
            axis_types=(AxisType.Auto,) * len(axes),
        )
        assignment = Assignment(
            degrees=Degrees(stages=1, axes=axes), roles={}, states={}
        )
        specs = phase_specs(traced, graph, states, assignment)
        self.step = jitted(traced, specs, self.mesh)
        placed = zip(jax.tree.leaves(args), specs.arguments, strict=True)
        self.leaves = [
            jax.device_put(leaf, jax.sharding.NamedSharding(self.mesh, spec))
            for leaf, spec in placed
        ]

    def __call__(self) -> list[Any]:
        """The flat results."""
        return self.step(*self.leaves)

    def collectives(self) -> set[str]:
        """Kinds of collectives in the compiled program."""
        return set(
            COLLECTIVE.findall(self.step.lower(*self.leaves).compile().as_text())
        )


def _state(node: Any, labels: set[int]) -> int:
    places = [i for i, factor in enumerate(node.factors) if factor.label in labels]
    return places[0] + 1 if places else 0
