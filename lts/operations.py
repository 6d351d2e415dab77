"""What a plan does with every operator: its source line, specs and collectives.

These are the facts that `explain` reads; a saved plan has them, since the program is
not there to be asked again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lts.cost.predict import Predicted, predicted_collectives
from lts.graph import Node, Operand, OpGraph
from lts.layout import resolved, spec_of
from lts.mesh import MeshAxis

Entry = str | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Array:
    """An operand or result of an operator: the value that it is of, and how it lies."""

    of: str
    shape: tuple[int, ...]
    spec: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective next to an operator; `nbytes` is its result on one device."""

    kind: str
    axes: tuple[str, ...]
    nbytes: int
    count: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operator of a phase, or a value that collectives run in.

    Attributes:
      phase, name: of the node.
      source: `file.py:line` of the user's code; "" where it is not known.
      primitive: of jax; "" for a value.
      trips: times that it runs in a step.
      operands, results: of an operator, as it wants them.
      collectives: that it needs; a reshard is counted at the operator that asks for it.
    """

    phase: str
    name: str
    source: str
    primitive: str
    trips: int
    operands: tuple[Array, ...] = ()
    results: tuple[Array, ...] = ()
    collectives: tuple[Collective, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return _lists(asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Operation":
        """The operation that `to_dict` wrote."""
        arrays = {
            key: tuple(_array(array) for array in data[key])
            for key in ("operands", "results")
        }
        found = tuple(
            Collective(**{**c, "axes": tuple(c["axes"])}) for c in data["collectives"]
        )
        return cls(**{**data, **arrays, "collectives": found})


def _lists(data: Any) -> Any:
    """The data with lists for tuples, as JSON gives it back."""
    if isinstance(data, dict):
        return {key: _lists(value) for key, value in data.items()}
    return [_lists(item) for item in data] if isinstance(data, list | tuple) else data


def _array(data: Mapping[str, Any]) -> Array:
    spec = tuple(tuple(e) if isinstance(e, list) else e for e in data["spec"])
    return Array(of=data["of"], shape=tuple(data["shape"]), spec=spec)


def operations_of(
    phase: str,
    graph: OpGraph,
    states: Sequence[np.ndarray],
    axes: Sequence[MeshAxis],
) -> tuple[Operation, ...]:
    """Operators of a phase in program order, and values that collectives run in.

    Args:
      states: per node, `[axes]`.
    """
    rows = predicted_collectives(graph, states, axes, scatters=True)
    asked: dict[str, list[Predicted]] = {}
    for row in rows:
        asked.setdefault(_asking(row.reason, graph), []).append(row)

    def arrays(node: Node, operands: Sequence[Operand]) -> Iterator[Array]:
        for operand in operands:
            if operand.value >= 0:
                own = resolved(states[node.index], node, operand.factors)
                yield Array(
                    of=graph.nodes[operand.value].name,
                    shape=operand.array.shape,
                    spec=tuple(spec_of(operand.factors, own, axes)),
                )

    return tuple(
        Operation(
            phase=phase,
            name=node.name,
            source=node.source,
            primitive=node.primitive,
            trips=node.trips,
            operands=tuple(arrays(node, node.operands)),
            results=tuple(arrays(node, node.results)),
            collectives=tuple(
                Collective(**asdict(row)) for row in asked.get(node.name, ())
            ),
        )
        for node in graph.nodes
        if node.is_op or node.name in asked
    )


def _asking(reason: str, graph: OpGraph) -> str:
    """The node that a collective is for: an operator if one is next to it."""
    names = reason.removeprefix("reduction in ").split(" -> ")
    ops = {op.name for op in graph.ops}
    return next((name for name in reversed(names) if name in ops), names[-1])
