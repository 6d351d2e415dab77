"""Flops and compulsory bytes of traced programs: closed forms, and XLA's own count."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lts
from lts.models import Decoder, read_config
from lts.problem import linked, trace_problem, zoo_problem
from tests.tiny import BASE, CONFIGS, PROMPT, WORKLOAD

BATCH = 32  # at which served models are traced
CACHE = PROMPT + 8


def graph_of(config: dict, phase: str, layers: str = "unrolled"):
    model = Decoder(config=read_config(config, "tiny"), layers=layers)
    problem = zoo_problem(model, WORKLOAD)
    graph = linked(trace_problem(problem, (phase,), BATCH), problem.dim_names)[phase]
    return model, problem, graph


def weight_bytes(model: Decoder, *names: str) -> int:
    args = model.args("decode", 1, input_len=1, cache_len=2)
    leaves = jax.tree_util.tree_leaves_with_path(args[0])
    return sum(
        leaf.size * leaf.dtype.itemsize
        for path, leaf in leaves
        if not names or any(name in str(path) for name in names)
    )


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_decode_moves_weights_caches_and_logits(name: str, layers: str) -> None:
    """All weights but the embedding, of which one row per sequence; the whole cache
    read, one position written; tokens in, logits out (a scalar is no array)."""
    model, problem, graph = graph_of(CONFIGS[name], "decode", layers)
    config = CONFIGS[name]
    rows = BATCH * config["hidden_size"] * 4
    table = config["vocab_size"] * config["hidden_size"] * 4
    weights = weight_bytes(model) - (0 if name == "tied" else table - rows)
    position = 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    cache = config["num_hidden_layers"] * BATCH * position
    _, held, tokens, _ = problem.args("decode", BATCH)
    assert sum(a.size * 4 for a in jax.tree.leaves(held)) == cache * CACHE
    logits = BATCH * config["vocab_size"] * 4
    ids = tokens.size * tokens.dtype.itemsize
    assert graph.compulsory_bytes == weights + cache * (CACHE + 1) + ids + logits


def test_a_table_that_is_looked_up_is_read_by_row() -> None:
    table, ids = jnp.zeros((1000, 16)), jnp.zeros(6, jnp.int32)
    graph = lts.trace(lambda table, ids: table[ids] * 2, table, ids)
    assert graph.compulsory_bytes == 6 * 16 * 4 + 6 * 4 + 6 * 16 * 4


def test_an_update_in_place_writes_what_it_updates() -> None:
    def write(cache: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        cache = lax.dynamic_update_slice(cache, new, (0, 3))
        return cache, cache.sum()

    graph = lts.trace(write, jnp.zeros((8, 32)), jnp.zeros((8, 1)))
    assert graph.compulsory_bytes == 8 * 32 * 4 + 8 * 4 + 8 * 4


def test_updates_at_indices_write_what_they_update() -> None:
    def write(cache: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
        return cache.at[jnp.arange(8), at].set(new)

    cache, at, new = jnp.zeros((8, 32, 4)), jnp.zeros(8, jnp.int32), jnp.zeros((8, 4))
    graph = lts.trace(write, cache, at, new)
    assert graph.compulsory_bytes == (8 * 32 + 8 + 8) * 16 + 8 * 4


@pytest.mark.parametrize("made", [False, True])
def test_look_ups_and_updates_take_the_time_of_their_rows(made: bool) -> None:
    """Tables are not read, nor arrays updated in place; one made here is written."""
    table, ids = jax.ShapeDtypeStruct((2**22, 64), "float32"), jnp.zeros(2**14, int)
    rows = jax.ShapeDtypeStruct((2**14, 64), "float32")

    def add(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
        start = jnp.zeros((2**20, 64)) if made else table
        return start.at[ids].add(rows)

    cluster = lts.Cluster.parse("h100:1x1")
    bandwidth = cluster.chip.achieved_bytes_per_s
    launch = cluster.chip.op_launch_s
    index, row_bytes = 2**14 * 4, 2**14 * 256

    def time_s(function: Callable[..., jax.Array], *args: Any) -> float:
        plan = lts.price(function, args, cluster=cluster, degrees={"tp": 1})
        (part,) = (p for p in plan.metrics.breakdown if p.kind == "op")
        return part.time_s

    expected = (index + 2 * row_bytes) / bandwidth + launch
    assert time_s(lambda t, i: t[i], table, ids) == pytest.approx(expected, rel=1e-6)
    expected += (2**20 * 256 if made else 0) / bandwidth
    assert time_s(add, table, ids, rows) == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_step_reads_and_writes_parameters() -> None:
    def step(params: jax.Array, x: jax.Array) -> jax.Array:
        return params - 0.1 * jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p)))(params)

    graph = lts.trace(step, jnp.zeros((16, 64)), jnp.zeros((8, 16)))
    assert graph.compulsory_bytes == 2 * 16 * 64 * 4 + 8 * 16 * 4


def without_products(jaxpr, consts, *args):
    """A jaxpr evaluated with zeros for every product, which keep their operands."""
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if hasattr(atom, "val") else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "dot_general":
            aval = eqn.outvars[0].aval
            zeros = lax.full(aval.shape, 0, aval.dtype)
            outs = lax.optimization_barrier((zeros, *operands))[:1]
        elif eqn.primitive.name == "jit":
            inner = eqn.params["jaxpr"]
            outs = without_products(inner.jaxpr, inner.consts, *operands)
        else:
            outs = eqn.primitive.bind(*operands, **eqn.params)
            outs = outs if eqn.primitive.multiple_results else [outs]
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def product_flops(function, *args) -> float:
    """What XLA counts for the products of a program, before any optimisation."""
    closed = jax.make_jaxpr(function)(*args)
    leaves = jax.tree.leaves(args)
    bare = functools.partial(without_products, closed.jaxpr, closed.consts)
    with_all = jax.jit(jax.extend.core.jaxpr_as_fun(closed)).lower(*leaves)
    without = jax.jit(bare).lower(*leaves)
    counts = (low.cost_analysis().get("flops", 0.0) for low in (with_all, without))
    return next(counts) - next(counts)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["dense", "two KV heads"])
def test_products_of_a_decoder_are_those_that_xla_counts(name: str, phase: str) -> None:
    _, problem, graph = graph_of(CONFIGS[name], phase)
    counted = product_flops(problem.function(phase), *problem.args(phase, BATCH))
    assert graph.flops == counted


def test_xla_counts_the_body_of_a_scan_once_and_we_every_trip() -> None:
    """Case 18, jax-ml/jax#18672: 24 layers counted as one."""
    depth, batch, width = 24, 8, 32
    x, ws = jnp.zeros((batch, width)), jnp.zeros((depth, width, width))

    def scanned(x: jax.Array, ws: jax.Array) -> jax.Array:
        return lax.scan(lambda x, w: (x @ w, None), x, ws)[0]

    def unrolled(x: jax.Array, ws: jax.Array) -> jax.Array:
        return functools.reduce(jnp.matmul, list(ws), x)

    one = 2 * batch * width * width
    assert lts.trace(scanned, x, ws).flops == depth * one
    assert lts.trace(unrolled, x, ws).flops == depth * one
    assert product_flops(unrolled, x, ws) == depth * one
    xla = jax.jit(scanned).lower(x, ws).compile().cost_analysis()["flops"]
    assert one <= xla < 1.1 * one


@pytest.mark.parametrize(
    "pattern",
    ["bij,bjk->bik", "bhqd,bkhd->bhqk", "ij,kj->ki", "abc,cd->abd", "i,j->ij"],
)
def test_einsums_count_as_xla_counts_them(pattern: str) -> None:
    sizes = dict(zip("abcdhijkq", (2, 3, 4, 5, 6, 7, 8, 9, 10), strict=True))
    operands = [
        jnp.zeros([sizes[i] for i in part])
        for part in pattern.split("->", maxsplit=1)[0].split(",")
    ]
    einsum = functools.partial(jnp.einsum, pattern)
    letters = {i for i in pattern if i.isalpha()}
    expected = 2 * math.prod(sizes[i] for i in letters)
    assert lts.trace(einsum, *operands).flops == expected
    if pattern != "i,j->ij":  # XLA counts an outer product as one multiplication
        assert product_flops(einsum, *operands) == expected


def test_base_is_what_the_closed_forms_assume() -> None:
    assert np.dtype(BASE["torch_dtype"]).itemsize == 4
