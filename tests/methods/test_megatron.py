"""The static rule gives the degrees and roles that an engineer would write down."""

import dataclasses

import jax.numpy as jnp
import pytest

from lts.hardware import Cluster
from lts.methods.megatron import megatron_picks
from tests.methods.problems import plain_evaluator


def roles_by_link(assignment, group: str) -> dict[str, set[str | None]]:
    """Roles of the sized axes of a group, inside nodes and across."""
    found: dict[str, set[str | None]] = {"inside": set(), "across": set()}
    for axis, role in zip(
        assignment.degrees.axes, assignment.roles[group], strict=True
    ):
        if axis.size > 1:
            found["inside" if axis.inside else "across"].add(role)
    return found


def test_llama_70b_on_two_nodes_is_tp_8_dp_2(llama_70b):
    space = llama_70b.space
    assignment = space.decode(megatron_picks(llama_70b.tables))
    assert assignment.degrees.stages == 1
    assert assignment.degrees.mesh_size == 16
    decode = space.graphs["decode"]
    batch = {f.name for n in decode.nodes for f in n.factors if f.batched}
    heads = {f.name for f in decode.node("cache/key").factors if f.size == 8}
    hidden = {
        f.name for f in decode.node("params/layers/up").factors if f.size == 28672
    }
    for group, label in (("attention", heads), ("mlp", hidden)):
        found = roles_by_link(assignment, group)
        assert found["across"] == batch
        assert found["inside"] == label
    cache = assignment.states["decode"]["cache/key"]
    assert set(cache) == batch | heads


def test_less_memory_takes_stages_node_by_node(llama_70b):
    # 17.6 GB of weights per GPU with one stage: over 80% of 20 GB, under it halved
    chip = dataclasses.replace(llama_70b.tables.cluster.chip, hbm_bytes=int(22e9))
    cluster = dataclasses.replace(llama_70b.tables.cluster, chip=chip)
    pricing = dataclasses.replace(llama_70b.tables.pricing, cluster=cluster)
    tables = dataclasses.replace(llama_70b.tables, pricing=pricing)
    degrees = llama_70b.space.decode(megatron_picks(tables)).degrees
    assert (degrees.stages, degrees.mesh_size) == (2, 8)
    assert all(axis.inside for axis in degrees.axes)


def test_ways_beyond_kv_heads_take_the_heads_of_each(decoder):
    space = decoder.space
    assignment = space.decode(megatron_picks(decoder.tables))
    sizes = {
        f.name: f.size
        for f in space.graphs["decode"].node("params/layers/query").factors
    }
    roles = [r for r in assignment.roles["attention"] if r is not None]
    # two KV heads of four queries each on four GPUs
    assert sorted(sizes[role] for role in roles) == [2, 4]


def test_a_plain_mlp_is_split_by_columns_then_rows(mlp):
    space = mlp.space
    assignment = space.decode(megatron_picks(mlp.tables))
    (group,) = space.groups
    names = {
        f.name for n in space.graphs["step"].nodes for f in n.factors if f.size == 4096
    }
    found = roles_by_link(assignment, group)
    assert found["inside"] == names
    assert found["across"] <= {None}


def test_a_function_without_weights_is_refused():
    evaluator = plain_evaluator(
        lambda: jnp.ones((8, 8)) @ jnp.ones((8, 8)), (), Cluster.parse("h100:1x2")
    )
    with pytest.raises(ValueError, match="Megatron rule"):
        megatron_picks(evaluator.tables)
