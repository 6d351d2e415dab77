"""The expert-parallel form: outputs, and what its compiled program sends."""

import math
from collections import Counter
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lts.hlo import list_collectives
from lts.models.capacity import COLUMNS_PER_SLOT, destination_rows
from lts.models.dispatch import ExpertLayout, sharded_expert_ffn
from tests.after_spmd import compiled_with_dump
from tests.models.expert_oracle import (
    Experts,
    distinct_experts,
    every_expert_on_every_token,
    random_experts,
    relative_error,
)

AXES = ("x", "y", "z")
B, D, E, F, K = 8, 8, 16, 8, 3
LAYERS = 2

CASES: dict[str, tuple[ExpertLayout, str]] = {
    "experts over all": (ExpertLayout((("x", "y", "z"), ()), ("x", "y", "z")), "gated"),
    "experts x tensor": (ExpertLayout((("x", "y"), ()), ("x", "y"), ("z",)), "scaled"),
    "data x experts": (ExpertLayout((("x", "y", "z"), ()), ("y", "z")), "ungated"),
    "experts by sum": (ExpertLayout((("x",), ()), ("y", "z")), "scaled"),
    "half by sum": (ExpertLayout((("x",), ()), ("x", "y")), "gated"),
    "half by sum, between": (ExpertLayout((("x", "z"), ()), ("x", "y", "z")), "scaled"),
    "sequence": (ExpertLayout((("z",), ("y",)), ("x", "y")), "gated"),
    "tokens alone": (ExpertLayout((("x", "y"), ())), "ungated"),
}


def mesh() -> Mesh:
    devices = np.array(jax.devices()[:8]).reshape(2, 2, 2)
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * 3)


def length(layout: ExpertLayout) -> int:
    """New tokens of a sequence: an odd number unless they are split."""
    return 48 if layout.tokens[1] else 47


class Program(NamedTuple):
    """Two layers in a scan under jit, compiled."""

    run: jax.stages.Compiled
    shardings: Any
    stack: Experts
    text: str  # after SPMD partitioning


@cache
def program(name: str) -> Program:
    layout, kind = CASES[name]
    stack = random_experts(1, (LAYERS, E, D, F), kind)

    def layer(x, operands):
        weight, expert, experts = operands
        return x + sharded_expert_ffn(mesh(), layout, x, weight, expert, *experts), None

    def layers(x, weight, expert, stack):
        return lax.scan(layer, x, (weight, expert, stack))[0]

    each = PartitionSpec(None, *layout.tokens)
    into = PartitionSpec(None, layout.experts, None, layout.hidden)
    back = PartitionSpec(None, layout.experts, layout.hidden)
    gate = None if stack.gate is None else into
    specs = (PartitionSpec(*layout.tokens), each, each, (gate, into, back))
    put = jax.tree.map(lambda spec: NamedSharding(mesh(), spec), specs)
    step = jax.jit(layers, in_shardings=put, out_shardings=put[0])
    tokens = (LAYERS, B, length(layout))
    shapes = (
        jax.ShapeDtypeStruct((*tokens[1:], D), jnp.float32),
        jax.ShapeDtypeStruct((*tokens, K), jnp.float32),
        jax.ShapeDtypeStruct((*tokens, K), jnp.int32),
        tuple(stack),
    )
    run, text = compiled_with_dump(step.lower(*shapes))
    return Program(run, put, stack, text)


def routings(tokens: tuple[int, ...]) -> dict[str, jax.Array]:
    even = distinct_experts(2, (*tokens, K), E)
    beyond = np.random.default_rng(3).integers(-2, E + 2, (*tokens, K))
    return {
        "even": even,
        "one expert": jnp.full_like(even, 5),
        "experts of one device": even % 2,
        "some to no expert": jnp.asarray(beyond, jnp.int32),
    }


@pytest.mark.parametrize("name", CASES)
def test_every_layout_gives_what_every_expert_on_every_token_gives(name: str) -> None:
    run, put, stack, _ = program(name)
    tokens = (LAYERS, B, length(CASES[name][0]))
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(*tokens[1:], D)), jnp.float32)
    weight = jnp.asarray(random.random((*tokens, K)), jnp.float32)
    for routing, expert in routings(tokens).items():
        found = run(*jax.device_put((x, weight, expert, tuple(stack)), put))
        wanted = np.asarray(x, np.float64)
        for i in range(LAYERS):
            own = jax.tree.map(lambda array, i=i: array[i], stack)
            wanted = wanted + every_expert_on_every_token(
                wanted, weight[i], expert[i], own
            )
        # Sums of float32 products in another order, over two layers.
        assert relative_error(found, wanted) < 1e-5, routing


def test_a_busy_destination_takes_a_second_round() -> None:
    # so that what goes to one device above is known to be over the room for it
    assert destination_rows(47, K, 8) < 47


def expected_collectives(layout: ExpertLayout) -> Counter:
    """Kind, axes and bytes of each, with float32 rows."""
    sizes = mesh().shape

    def ways(axes: tuple[str, ...]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    tokens = B * length(layout) // ways(layout.token_axes)
    wanted: Counter = Counter()
    if on := layout.on:
        rows = ways(on) * int(destination_rows(tokens, K, ways(layout.experts)))
        wanted["all_to_all", on, rows * (D + COLUMNS_PER_SLOT * K) * 4] += 1
        wanted["all_to_all", on, rows * D * 4] += 1
        wanted["all_reduce", on, 4] += 1
    if summed := {*layout.off, *layout.hidden}:
        axes = tuple(axis for axis in AXES if axis in summed)
        wanted["all_reduce", axes, tokens * D * 4] += 1
    return wanted


@pytest.mark.parametrize("name", CASES)
def test_a_layer_has_two_exchanges_or_one_sum_and_nothing_else(name: str) -> None:
    found = list_collectives(program(name).text, mesh().shape)
    counted = Counter((c.kind, c.axes, c.nbytes) for c in found)
    assert counted == expected_collectives(CASES[name][0])
    assert all(c.count == LAYERS for c in found)
    # Only the number of rounds, which the routing decides, is not in the program.
    assert all(c.trips_known == (c.kind != "all_to_all") for c in found)


def test_numbers_of_many_local_experts_survive_in_bfloat16() -> None:
    experts = 4096  # 512 on each device
    axes = Mesh(
        np.array(jax.devices()[:8]).reshape(4, 2),
        ("x", "y"),
        axis_types=(AxisType.Auto,) * 2,
    )
    layout = ExpertLayout((("y",),), ("x", "y"))
    number = np.arange(experts)
    digits = np.stack([number // 64, number % 64, *np.zeros((2, experts))], axis=-1)
    down = jnp.asarray(digits[:, None], jnp.bfloat16)  # [e, 1, 4]
    up = jnp.full((experts, 4, 1), 0.25, jnp.bfloat16)
    expert = distinct_experts(0, (256, 1), experts)
    operands = jnp.ones((256, 4), jnp.bfloat16), jnp.ones((256, 1)), expert
    run = jax.jit(partial(sharded_expert_ffn, axes, layout))
    found = run(*operands, None, up, down)
    np.testing.assert_array_equal(found, digits[expert[:, 0]])


@pytest.mark.parametrize(
    ("scatter", "spec", "whole"),
    [({"y": 0}, (("x", "y"),), ("z",)), ({"z": 1, "y": 1}, ("x", ("z", "y")), ())],
)
def test_sums_are_scattered_over_the_dims_that_are_asked_for(
    scatter: dict[str, int], spec: tuple, whole: tuple[str, ...]
) -> None:
    layout = ExpertLayout((("x",), ()), ("x", "y"), ("z",))
    experts = random_experts(1, (E, D, F), "gated")
    x = jax.random.normal(jax.random.key(0), (B, 4, D))
    weight = jnp.ones((B, 4, K))
    operands = (x, weight, distinct_experts(0, (B, 4, K), E), *experts)
    run = partial(sharded_expert_ffn, mesh(), layout, scatter=scatter)
    compiled, text = compiled_with_dump(jax.jit(run).lower(*operands))
    found = compiled(*jax.device_put(operands, compiled.input_shardings[0]))
    assert found.sharding.spec == PartitionSpec(*spec)
    wanted = every_expert_on_every_token(x, weight, operands[2], experts)
    assert relative_error(found, wanted) < 1e-5
    sums = [c for c in list_collectives(text, mesh().shape) if c.kind != "all_to_all"]
    axes = tuple(axis for axis in AXES if axis in scatter)
    kinds = {("all_reduce", ("x",)), ("reduce_scatter", axes)}
    assert {(c.kind, c.axes) for c in sums} == kinds | {
        ("all_reduce", axes) for axes in [whole] if axes
    }


@pytest.mark.parametrize(
    ("layout", "scatter", "message"),
    [
        (ExpertLayout((("x",),), ("x",), ("x",)), {}, "two dims over axis 'x'"),
        (ExpertLayout((("x",),), ("x",)), {"x": 0}, "no sum over axis 'x' .*no axes"),
        (ExpertLayout(((),), (), ("y",)), {"x": 0}, "no sum over axis 'x' .*of y"),
        (ExpertLayout((("x",),), (), ()), {}, r"split 3 over axes x \(2 ways\)"),
        (ExpertLayout(((),), ("x", "y"), ()), {}, r"split 6 over axes x, y \(4 ways\)"),
        (ExpertLayout(((),), (), ("z",)), {}, r"split 5 over axes z \(2 ways\)"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(
    layout: ExpertLayout, scatter: dict[str, int], message: str
) -> None:
    experts = random_experts(0, (6, 4, 5), "ungated")
    operands = jnp.ones((3, 4)), jnp.ones((3, 1)), jnp.zeros((3, 1), jnp.int32)
    with pytest.raises(ValueError, match=message) as error:
        sharded_expert_ffn(mesh(), layout, *operands, *experts, scatter=scatter)
    assert "\n" not in str(error.value)


def test_scale_blocks_must_be_split_whole() -> None:
    experts = random_experts(0, (2, 4, 12), "scaled")  # 3 blocks along the hidden dim
    operands = jnp.ones((2, 4)), jnp.ones((2, 1)), jnp.zeros((2, 1), jnp.int32)
    with pytest.raises(ValueError, match="cannot split 3 over axes x"):
        sharded_expert_ffn(
            mesh(), ExpertLayout(((),), hidden=("x",)), *operands, *experts
        )
