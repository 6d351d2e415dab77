"""Assignments as plain data, and what their states do to arrays."""

import json

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lts.assignment import Assignment
from lts.graph import Factor, Node, NodeKind
from lts.layout import op_ends, spec_of, state_numbers, waypoints
from lts.mesh import Degrees, MeshAxis

AXES = tuple(
    MeshAxis(name=name, size=size, inside=inside)
    for name, size, inside in (("x", 2, False), ("y", 4, True), ("z", 1, True))
)
ASSIGNMENT = Assignment(
    degrees=Degrees(stages=2, axes=AXES, stages_inside=True),
    roles={"mlp": ("ffn", None, None)},
    states={"decode": {"mlp/gate": ("ffn", "batch", None)}, "prefill": {}},
)
NODE = Node(
    index=0,
    name="mlp/gate",
    kind=NodeKind.OP,
    factors=(
        Factor(name="hidden", size=64, units=64, reduction=True),
        Factor(name="batch", size=8, units=8, batched=True),
        Factor(name="ffn", size=32, units=32),
    ),
)


def test_an_assignment_comes_back_from_json() -> None:
    data = json.loads(json.dumps(ASSIGNMENT.to_dict()))
    assert Assignment.from_dict(data) == ASSIGNMENT


@pytest.mark.parametrize(
    "field", ["stages", "stages_inside", "axes", "roles", "states"]
)
def test_a_missing_field_is_named(field: str) -> None:
    data = ASSIGNMENT.to_dict()
    del data[field]
    with pytest.raises(ValueError, match=f"not an assignment: '{field}' is missing"):
        Assignment.from_dict(data)


def test_a_malformed_axis_is_refused() -> None:
    data = ASSIGNMENT.to_dict()
    data["axes"] = [{"name": "x", "width": 2}]
    with pytest.raises(ValueError, match="not an assignment: .*malformed"):
        Assignment.from_dict(data)


def test_states_become_numbers_of_the_nodes_factors() -> None:
    numbers = state_numbers(NODE, ("ffn", None, "hidden"))
    np.testing.assert_array_equal(numbers, [3, 0, 1])


def test_an_unknown_factor_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no factor 'heads' .* hidden, batch, ffn"):
        state_numbers(NODE, ("heads", None, None))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([0, 0, 0], P()),
        ([3, 0, 0], P(None, "x")),
        ([2, 3, 0], P("x", "y")),
        ([3, 3, 0], P(None, ("x", "y"))),
        ([2, 0, 3], P("x")),  # z has size 1
        ([1, 0, 0], P()),  # a sum lies on no dim
    ],
)
def test_states_become_specs_in_mesh_order(states: list[int], expected: P) -> None:
    assert spec_of((1, 2), np.array(states), AXES) == expected


def test_dims_without_a_factor_stay_whole() -> None:
    assert spec_of((None, 2, None), np.array([3, 0, 0]), AXES) == P(None, "x")


def test_partial_sums_go_straight_where_the_value_wants_them() -> None:
    def way(target: list[int]) -> tuple[P, ...]:
        ends = op_ends((1, 2), NODE, np.array([1, 3, 0]), (0, 1), np.array(target))
        return waypoints(*ends, (8, 8), AXES)

    assert way([2, 2, 0]) == (P(None, ("y", "x")), P(None, ("x", "y")))
    assert way([0, 0, 0]) == (P(None, "y"), P())
    assert way([1, 0, 0]) == (P("x", "y"), P("x"))
