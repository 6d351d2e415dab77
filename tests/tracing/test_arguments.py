"""Paths of arguments and results, and functions with little to shard."""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lts
from lts.tracing import argument_paths, trace_program


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


Pair = collections.namedtuple("Pair", ["left", "right"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    cache: Any
    steps: Any


def test_paths_name_dicts_lists_namedtuples_and_dataclasses() -> None:
    args = (
        {"layers": [{"w": spec(2)}, {"w": spec(2)}]},
        Pair(spec(3), spec(4)),
        State(cache=(spec(5), spec(6)), steps=spec()),
    )
    assert argument_paths(args, {"scale": spec(7)}, ("params", "pair", "state")) == [
        "params/layers/0/w",
        "params/layers/1/w",
        "pair/left",
        "pair/right",
        "state/cache/0",
        "state/cache/1",
        "state/steps",
        "scale",
    ]


def test_arguments_without_names_go_by_position() -> None:
    assert argument_paths((spec(2), {"a": spec(3)}), {}) == ["0", "1/a"]
    assert argument_paths((spec(2), spec(3)), {}, ("x",)) == ["x", "1"]


def test_keyword_arguments_are_paths_by_name() -> None:
    def scale(x: jax.Array, *, by: jax.Array) -> jax.Array:
        return x * by

    graph = lts.trace(scale, spec(8, 16), by=spec(8, 16))
    (node,) = graph.values
    assert [leaf.path for leaf in node.leaves] == ["0", "by", "out"]


def test_results_are_paths_under_out() -> None:
    def give(x: jax.Array) -> Any:
        return {"a": x + 1, "b": (x * 2, State(cache=x, steps=1))}

    traced = trace_program(give, (spec(8, 16),))
    assert traced.in_paths == ("0",)
    assert traced.out_paths == (
        "out/a",
        "out/b/0",
        "out/b/1/cache",
        "out/b/1/steps",
    )


def test_arrays_and_abstract_arrays_trace_alike() -> None:
    x, w = np.ones((8, 16), np.float32), jnp.ones((16, 4))
    concrete = lts.trace(lambda x, w: x @ w, x, w)
    abstract = lts.trace(lambda x, w: x @ w, spec(8, 16), spec(16, 4))
    assert [n.factors for n in concrete.nodes] == [n.factors for n in abstract.nodes]


def test_an_argument_given_back_is_one_value_with_two_leaves() -> None:
    (node,) = lts.trace(lambda x: x, spec(8, 16)).values
    assert [leaf.path for leaf in node.leaves] == ["0", "out"]
    assert node.kernels == ()


def test_a_constant_result_is_no_node() -> None:
    graph = lts.trace(lambda x: (x, jnp.zeros((4, 4)), 1.0), spec(8, 16))
    assert [node.name for node in graph.nodes] == ["0"]


def test_scalars_are_no_nodes() -> None:
    graph = lts.trace(lambda a, b: a * b + 1, spec(), spec())
    assert graph.nodes == graph.edges == ()
    assert lts.trace(lambda: 1.0).nodes == ()


def test_empty_trees_and_none_have_no_paths() -> None:
    def keep(empty: dict, x: jax.Array, mask: None) -> Any:
        return {}, x, mask

    graph = lts.trace(keep, {}, spec(8, 16), None)
    (node,) = graph.values
    assert [leaf.path for leaf in node.leaves] == ["1", "out/1"]


def test_arrays_without_elements_trace_and_weigh_nothing() -> None:
    def work(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.concatenate([x, x]).reshape(16, 0).sum() + (x @ w).reshape(-1)

    graph = lts.trace(work, spec(0, 16), spec(16, 32))
    (op,) = graph.ops
    assert op.flops == 0
    assert graph.node("0").leaves[0].array.nbytes == 0


def test_dims_of_extent_one_have_no_factor() -> None:
    (node,) = lts.trace(jnp.tanh, spec(1, 16, 1)).values
    assert [f.size for f in node.factors] == [16]
    assert node.leaves[0].factors == (None, 0, None)


def test_key_arrays_are_scalars_of_their_own() -> None:
    def noisy(x: jax.Array, key: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, (8, 16))

    graph = lts.trace(noisy, spec(8, 16), jax.random.key(0))
    assert [node.name for node in graph.nodes] == ["0"]


def test_integer_and_boolean_arithmetic_traces() -> None:
    def parity(ids: jax.Array) -> jax.Array:
        return ((ids // 3) % 2 == 0) & (ids > 4)

    (node,) = lts.trace(parity, spec(8, dtype="int32")).values
    argument, result = (leaf.array for leaf in node.leaves)
    assert (argument.nbytes, result.nbytes) == (32, 8)
