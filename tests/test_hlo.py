import textwrap
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lts.hlo import (
    Collective,
    entry_bytes,
    list_collectives,
    rematerialization_warnings,
)
from tests.after_spmd import compiled_with_dump

MESH_SHAPE = {"dp": 2, "tp": 4}


def module(*computations: str) -> str:
    return "HloModule m\n\n" + "\n".join(textwrap.dedent(c) for c in computations)


def one_instruction(instruction: str) -> Collective:
    entry = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  {instruction}\n}}\n"
    (found,) = list_collectives(module(entry), MESH_SHAPE)
    return found


GATHER = """\
    %{name} (p: f32[8]) -> f32[32] {{
      %p = f32[8]{{0}} parameter(0)
      ROOT %ag = f32[32]{{0}} all-gather(%p), replica_groups=[2,4]<=[8]
    }}
    """


def test_axes_come_from_positions_in_the_flattened_mesh() -> None:
    text = module(
        """\
        ENTRY %main (p: bf16[8]) -> bf16[8] {
          %p = bf16[8]{0} parameter(0)
          %a = bf16[8]{0} all-reduce(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}
          %b = bf16[8]{0} all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}
          %c = bf16[8]{0} all-reduce(%p), replica_groups={}
          %d = bf16[8]{0} all-reduce(%p), replica_groups=[8,1]<=[8]
          %e = bf16[8]{0} collective-permute(%p), source_target_pairs={{0,1},{2,2}}
          ROOT %f = bf16[8]{0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}
        }
        """
    )
    found = [(c.kind, c.axes, c.group_size) for c in list_collectives(text, MESH_SHAPE)]
    assert found == [
        ("all_reduce", ("dp",), 2),
        ("all_reduce", ("tp",), 2),  # half of the axis
        ("all_reduce", ("dp", "tp"), 8),
        ("collective_permute", ("tp",), 2),
    ]  # groups of one device and pairs of one device are no communication


def test_group_outside_the_mesh_is_rejected() -> None:
    text = module(
        "ENTRY %m (p: f32[8]) -> f32[8] {\n  %a = f32[8]{0} all-reduce(%p), "
        "replica_groups={{0,9}}\n}\n"
    )
    with pytest.raises(ValueError, match="names device 9, but mesh .* has 8 devices"):
        list_collectives(text, MESH_SHAPE)


def test_entry_bytes_are_those_of_each_argument_and_result() -> None:
    head = "HloModule m, is_scheduled=true, entry_computation_layout="
    assert entry_bytes(
        head + "{(bf16[8,64]{1,0:T(8,128)(2,1)}, s4[3]{0:E(4)}, /*index=2*/pred[])->"
        "(f32[2]{0}, u8[])}, num_partitions=8"
    ) == ([1024, 2, 1], [8, 1])
    assert entry_bytes(head + "{()->f32[]}, num_partitions=8\n") == ([], [4])
    with pytest.raises(ValueError, match="no entry_computation_layout"):
        entry_bytes("ENTRY %main")


def test_text_without_entry_is_rejected() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        list_collectives("", MESH_SHAPE)


@pytest.mark.parametrize(
    ("instruction", "kind", "nbytes"),
    [
        ("%a = f32[32]{0} all-gather(%p), ", "all_gather", 128),
        ("%a = s4[33]{0:E(4)} all-gather(%p), ", "all_gather", 17),
        ("%a = pred[] all-reduce(%p), ", "all_reduce", 1),
        (
            "%a = (f32[8]{0}, /*index=1*/bf16[8]{0}) all-to-all(%p, %q), ",
            "all_to_all",
            48,
        ),
        (
            "%a = (f32[8]{0}, f32[32]{0}) all-gather-start(%p), ",
            "all_gather",
            128,
        ),
        (
            "%a = ((f32[8]{0}, f32[4]{0}), (f32[32]{0}, f32[16]{0})) "
            "all-gather-start(%p, %q), ",
            "all_gather",
            192,
        ),
        (
            "%a = ((f32[32]{0}), f32[8]{0}, u32[]) reduce-scatter-start(%p), ",
            "reduce_scatter",
            32,
        ),
        ("%a = (f32[8]{0}, f32[4]{0}) all-reduce-start(%p, %q), ", "all_reduce", 48),
        (
            "%a = f8e4m3fn[2,8]{1,0:T(8,128)(4,1)} reduce-scatter(%p), ",
            "reduce_scatter",
            16,
        ),
    ],
)
def test_bytes_are_those_of_the_result(
    instruction: str, kind: str, nbytes: int
) -> None:
    found = one_instruction(instruction + "replica_groups=[2,4]<=[8]")
    assert (found.kind, found.nbytes) == (kind, nbytes)
    assert (found.axes, found.group_size, found.count) == (("tp",), 4, 1)


def test_op_name_is_taken_from_the_metadata() -> None:
    with_name = one_instruction(
        "%a = f32[8]{0} all-reduce(%p), replica_groups={}, "
        'metadata={op_name="jit(f)/x[\\"k\\"]/dot" stack_frame_id=3}'
    )
    assert with_name.op_name == 'jit(f)/x["k"]/dot'
    assert (
        one_instruction("%a = f32[8] all-reduce(%p), replica_groups={}").op_name == ""
    )


def test_each_call_site_counts() -> None:
    text = module(
        GATHER.format(name="leaf"),
        GATHER.format(name="unused"),
        """\
        %twice (p: f32[8]) -> f32[32] {
          %p = f32[8]{0} parameter(0)
          %x = f32[32]{0} call(%p), to_apply=%leaf
          ROOT %y = f32[32]{0} fusion(%p), kind=kCustom, calls=%leaf
        }
        """,
        """\
        ENTRY %main (p: f32[8]) -> f32[32] {
          %p = f32[8]{0} parameter(0)
          %x = f32[32]{0} call(%p), to_apply=%twice
          %y = f32[32]{0} call(%p), to_apply=%twice
          %s = ((f32[8]), f32[32]) async-start(%p), calls=%leaf
          ROOT %d = f32[32]{0} async-done(%s), calls=%leaf
        }
        """,
    )
    (found,) = list_collectives(text, MESH_SHAPE)
    assert (found.kind, found.count, found.nbytes) == ("all_gather", 5, 128)


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%left, %right}",
        "true_computation=%left, false_computation=%right",
    ],
)
def test_each_branch_of_a_conditional_counts_once(branches: str) -> None:
    text = module(
        GATHER.format(name="left"),
        GATHER.format(name="right"),
        f"""\
        ENTRY %main (c: s32[], p: f32[8]) -> f32[32] {{
          %c = s32[] parameter(0)
          %p = f32[8]{{0}} parameter(1)
          ROOT %x = f32[32]{{0}} conditional(%c, %p, %p), {branches}
        }}
        """,
    )
    assert [c.count for c in list_collectives(text, MESH_SHAPE)] == [1, 1]


def loop(
    start: str, limit: str, direction: str, update: str, annotation: str = ""
) -> list[Collective]:
    """A while loop over `i` with one all-reduce in its body and one in its test."""
    reduced = "f32[8]{0} all-reduce(%x), replica_groups=[2,4]<=[8]"
    text = module(
        f"""\
        %body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
          %t = (s32[], f32[8]{{0}}) parameter(0)
          %i = s32[] get-tuple-element(%t), index=0
          %x = f32[8]{{0}} get-tuple-element(%t), index=1
          %one = s32[] constant(1)
          %three = s32[] constant(3)
          %new = {update}
          %y = {reduced}
          ROOT %out = (s32[], f32[8]{{0}}) tuple(%new, %y)
        }}
        """,
        f"""\
        %test (t: (s32[], f32[8])) -> pred[] {{
          %t = (s32[], f32[8]{{0}}) parameter(0)
          %i = s32[] get-tuple-element(%t), index=0
          %x = f32[8]{{0}} get-tuple-element(%t), index=1
          %y = {reduced}
          %limit = {limit}
          ROOT %go = pred[] compare(%i, %limit), direction={direction}
        }}
        """,
        f"""\
        ENTRY %main (n: s32[], p: f32[8]) -> f32[8] {{
          %n = s32[] parameter(0)
          %p = f32[8]{{0}} parameter(1)
          %start = {start}
          %copied = s32[] copy(%start)
          %init = (s32[], f32[8]{{0}}) tuple(%copied, %p)
          %w = (s32[], f32[8]) while(%init), condition=%test, body=%body{annotation}
          ROOT %r = f32[8]{{0}} get-tuple-element(%w), index=1
        }}
        """,
    )
    return list_collectives(text, MESH_SHAPE)


UP = "s32[] add(%i, %one)"
UP_BY_FOUR = """s32[] add(%one, %k)
          %k = s32[] add(%i, %three)"""


@pytest.mark.parametrize(
    ("start", "limit", "direction", "update", "trips"),
    [
        ("0", "7", "LT", UP, 7),
        ("0", "7", "LE", UP, 8),
        ("2", "7", "NE", UP, 5),
        ("2", "7", "LT", "s32[] add(%three, %i)", 2),
        ("1", "7", "LE", "s32[] add(%i, %three)", 3),
        ("7", "0", "GT", "s32[] subtract(%i, %one)", 7),
        ("7", "0", "GE", "s32[] subtract(%i, %three)", 3),
        ("-2", "2", "LT", UP, 4),
        ("0", "7", "LT", UP_BY_FOUR, 2),
    ],
)
def test_trips_are_solved_from_the_loop_condition(
    start: str, limit: str, direction: str, update: str, trips: int
) -> None:
    body, test = loop(
        f"s32[] constant({start})", f"s32[] constant({limit})", direction, update
    )
    assert (body.count, test.count) == (trips, trips + 1)
    assert body.trips_known and test.trips_known


def test_start_is_found_inside_nested_tuples() -> None:
    start = """s32[] get-tuple-element(%inner), index=1
          %inner = (s32[], s32[]) get-tuple-element(%outer), index=0
          %outer = ((s32[], s32[]), f32[8]{0}) tuple(%pair, %p)
          %pair = (s32[], s32[]) tuple(%n, %five)
          %five = s32[] constant(5)"""
    body, test = loop(start, "s32[] constant(7)", "LT", UP)
    assert (body.count, test.count, body.trips_known) == (2, 3, True)


def test_loop_that_never_starts_has_only_the_collectives_of_its_test() -> None:
    (test,) = loop("s32[] constant(7)", "s32[] constant(7)", "LT", UP)
    assert (test.count, test.trips_known) == (1, True)


@pytest.mark.parametrize(
    ("start", "limit", "direction", "update"),
    [
        ("s32[] copy(%n)", "s32[] constant(7)", "LT", UP),
        ("s32[] constant(0)", "s32[] add(%i, %i)", "LT", UP),
        ("s32[] constant(0)", "s32[] constant(7)", "LT", "s32[] multiply(%i, %three)"),
        ("s32[] constant(0)", "s32[] constant(7)", "LT", "s32[] subtract(%i, %one)"),
        ("s32[] constant(0)", "s32[] constant(7)", "NE", "s32[] add(%i, %three)"),
    ],
)
def test_loop_without_a_readable_trip_count_counts_once_and_says_so(
    start: str, limit: str, direction: str, update: str
) -> None:
    body, test = loop(start, limit, direction, update)
    assert (body.count, test.count) == (1, 1)
    assert not body.trips_known and not test.trips_known


def test_annotated_trip_count_comes_first() -> None:
    body, test = loop(
        "s32[] copy(%n)",
        "s32[] constant(7)",
        "LT",
        UP,
        ', backend_config={"known_trip_count":{"n":"12"}}',
    )
    assert (body.count, test.count, body.trips_known) == (12, 13, True)


def named(*spec: str | None) -> NamedSharding:
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    mesh = Mesh(devices, ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*spec))


def compiled_texts(
    fn: Callable, out: NamedSharding, *args: jax.ShapeDtypeStruct
) -> tuple[str, str]:
    """HLO after SPMD partitioning and at the end, compiled on the 8 CPU devices."""
    lowered = jax.jit(fn, out_shardings=out).lower(*args)
    compiled, dump = compiled_with_dump(lowered)
    final = compiled.as_text()
    assert final is not None
    return dump, final


def test_nested_scans_multiply_in_real_hlo() -> None:
    def fn(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        def mlp(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            y = jnp.tanh(x @ up) @ down
            return jax.lax.with_sharding_constraint(y, named("dp")), None

        def three_mlps(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(mlp, x, None, length=3)

        return jax.lax.scan(three_mlps, x, None, length=5)[0]

    texts = compiled_texts(
        fn,
        named("dp"),
        jax.ShapeDtypeStruct((16, 64), jnp.bfloat16, sharding=named("dp")),
        jax.ShapeDtypeStruct((64, 128), jnp.bfloat16, sharding=named(None, "tp")),
        jax.ShapeDtypeStruct((128, 64), jnp.bfloat16, sharding=named("tp")),
    )
    for text, itemsize in zip(texts, (2, 4), strict=True):  # CPU promotes bfloat16
        (found,) = list_collectives(text, MESH_SHAPE)
        assert (found.kind, found.axes, found.group_size) == ("all_reduce", ("tp",), 4)
        assert (found.count, found.trips_known) == (15, True)
        assert found.nbytes == 8 * 64 * itemsize
        assert found.op_name.endswith("dot_general")


def test_bounded_and_unbounded_while_loops_in_real_hlo() -> None:
    def step(_: int, x: jax.Array) -> jax.Array:
        y = jax.lax.with_sharding_constraint(x.sum(0), named())
        return x + y[None]

    def fn(x: jax.Array, stop: jax.Array) -> jax.Array:
        x = jax.lax.fori_loop(2, 9, step, x)
        return jax.lax.fori_loop(0, stop, step, x)

    after_spmd, _ = compiled_texts(
        fn,
        named("dp"),
        jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=named("dp")),
        jax.ShapeDtypeStruct((), jnp.int32, sharding=named()),
    )
    found = list_collectives(after_spmd, MESH_SHAPE)
    assert {(c.kind, c.axes, c.nbytes) for c in found} == {("all_reduce", ("dp",), 32)}
    assert sorted((c.count, c.trips_known) for c in found) == [(1, False), (7, True)]


def test_rematerialization_warnings_name_the_operation_once() -> None:
    line = (
        "W1130 16:24:29.888783  5517 spmd_partitioner.cc:656] [SPMD] Involuntary full "
        "rematerialization. The compiler cannot go from sharding {devices=[1,8,1]<=[8]}"
        " to {devices=[2,1,4]<=[8]} efficiently for HLO operation %copy.0 = "
        "f32[16,8,32]{2,1,0} copy(%cos.0), sharding={devices=[1,8,1]<=[8]}, "
        'metadata={op_name="jit(k)/cos" stack_frame_id=3}. As the last resort, SPMD '
        "will replicate the tensor.\n"
    )
    assert rematerialization_warnings(f"other\n{line}other\n{line}") == [
        "copy.0 (jit(k)/cos): {devices=[1,8,1]<=[8]} -> {devices=[2,1,4]<=[8]}"
    ]
    assert rematerialization_warnings("W1130 something else\n") == []
