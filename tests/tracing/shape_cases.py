"""Cases of primitives that move, pick, mix or contract dims; `primitive_cases` joins.

Every entry: the primitive, a function that binds it, its arguments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Entry = tuple[str, Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def einsum(pattern: str) -> Callable[..., Any]:
    return partial(jnp.einsum, pattern)


def contractions() -> list[Entry]:
    """dot_general: vectors, matrices, batch dims, several contracted, extent 1."""
    operands: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("i,i->", (8,), (8,)),
        ("ik,k->i", (8, 16), (16,)),
        ("ik,kj->ij", (8, 16), (16, 24)),
        ("ik,kj->ij", (6, 5), (5, 7)),
        ("ik,jk->ij", (1, 16), (24, 16)),
        ("bik,bkj->bij", (2, 8, 16), (2, 16, 24)),
        ("bqhd,bkhd->bhqk", (2, 5, 3, 16), (2, 7, 3, 16)),
        ("bhqk,bkhd->bqhd", (2, 3, 5, 7), (2, 7, 3, 16)),
        ("bik,kj->bij", (4, 6, 8), (8, 10)),
        ("bhd,hdk->bk", (8, 4, 16), (4, 16, 32)),
        ("i,j->ij", (8,), (6,)),
    ]
    return [("dot_general", einsum(p), (f32(*a), f32(*b))) for p, a, b in operands]


def ragged() -> list[Entry]:
    return [
        (
            "ragged_dot_general",
            lax.ragged_dot,
            (f32(rows, 8), f32(groups, 8, 24), i32(groups)),
        )
        for rows, groups in ((16, 4), (6, 3))
    ]


def layout() -> list[Entry]:
    """Operations that only move elements."""
    found: list[Entry] = []
    for shape, permutation in (
        ((8, 6), (1, 0)),
        ((2, 3, 8), (2, 0, 1)),
        ((4, 1, 6, 8), (0, 2, 3, 1)),
    ):
        function = partial(lax.transpose, permutation=permutation)
        found.append(("transpose", function, (f32(*shape),)))
    for before, after in (
        ((12,), (4, 3)),
        ((8, 64), (8, 4, 16)),
        ((8, 4, 16), (8, 64)),
        ((4, 6), (24,)),
        ((4, 6), (6, 4)),
        ((2, 3, 4), (6, 4)),
        ((6, 4), (3, 8)),
        ((8, 1, 6), (8, 6)),
        ((5,), (1, 5, 1)),
        ((2, 3, 5, 7), (6, 35)),
        ((24, 5), (2, 3, 4, 5)),
        ((1, 1), (1,)),
    ):
        function = partial(lax.reshape, new_sizes=after)
        found.append(("reshape", function, (f32(*before),)))
    for shape, dims in (((1, 8), (0,)), ((8, 1, 6, 1), (1, 3))):
        found.append(("squeeze", partial(lax.squeeze, dimensions=dims), (f32(*shape),)))
    for shape, out, dims in (
        ((), (8, 6), ()),
        ((6,), (8, 6), (1,)),
        ((6,), (6, 8), (0,)),
        ((8, 1), (8, 5), (0, 1)),
        ((3, 8), (2, 3, 8, 4), (1, 2)),
    ):
        function = partial(lax.broadcast_in_dim, shape=out, broadcast_dimensions=dims)
        found.append(("broadcast_in_dim", function, (f32(*shape),)))
    for shape, dims in (((8,), (0,)), ((4, 6, 8), (0, 2))):
        found.append(("rev", partial(lax.rev, dimensions=dims), (f32(*shape),)))
    found += [
        ("tile", partial(jnp.tile, reps=reps), (f32(*shape),))
        for shape, reps in (((8, 6), (2, 1)), ((3, 4), (1, 2)))
        if hasattr(lax, "tile_p")
    ]
    return found


def pieces() -> list[Entry]:
    """Slices, pads, concatenations, updates."""
    found: list[Entry] = []
    for shape, start, limit, strides in (
        ((8,), (0,), (4,), None),
        ((8,), (0,), (8,), (2,)),
        ((8, 6), (0, 2), (8, 3), None),
        ((8, 6), (2, 0), (6, 6), None),
        ((4, 6, 8), (0, 0, 7), (4, 6, 8), None),
        ((16, 3), (0, 0), (16, 3), (4, 1)),
    ):
        function = partial(
            lax.slice, start_indices=start, limit_indices=limit, strides=strides
        )
        found.append(("slice", function, (f32(*shape),)))
    for shape, sizes in (
        ((8, 6), (8, 1)),
        ((8, 6), (4, 6)),
        ((4, 6, 8), (1, 6, 8)),
        ((8,), (3,)),
    ):
        found.append(
            (
                "dynamic_slice",
                lambda x, *at, sizes=sizes: lax.dynamic_slice(x, at, sizes),
                (f32(*shape), *(i32() for _ in shape)),
            )
        )
    for shape, update in (
        ((8, 6), (8, 1)),
        ((8, 6), (4, 6)),
        ((4, 16, 3, 8), (4, 1, 3, 8)),
        ((8,), (8,)),
        ((6, 5), (2, 3)),
    ):
        found.append(
            (
                "dynamic_update_slice",
                lambda x, new, *at: lax.dynamic_update_slice(x, new, at),
                (f32(*shape), f32(*update), *(i32() for _ in shape)),
            )
        )
    for shape, config in (
        ((8,), ((1, 1, 0),)),
        ((8, 6), ((0, 0, 0), (2, 0, 0))),
        ((8, 6), ((0, 0, 1), (0, 0, 0))),
        ((4, 8), ((0, 0, 0), (-2, 0, 0))),
        ((4, 6, 8), ((1, 2, 3), (0, 0, 0), (0, 0, 0))),
    ):
        function = partial(lax.pad, padding_config=config)
        found.append(("pad", function, (f32(*shape), f32())))
    for shapes, dim in (
        (((8,), (8,)), 0),
        (((8, 6), (4, 6)), 0),
        (((8, 6), (8, 2), (8, 1)), 1),
        (((2, 3, 8), (2, 5, 8)), 1),
    ):
        found.append(
            (
                "concatenate",
                lambda *xs, dim=dim: lax.concatenate(xs, dim),
                tuple(f32(*shape) for shape in shapes),
            )
        )
    for shape, sizes, axis in (((8, 6), (4, 4), 0), ((8, 6), (1, 2, 3), 1)):
        function = partial(lax.split, sizes=sizes, axis=axis)
        found.append(("split", function, (f32(*shape),)))
    found += [
        (
            "stack",
            lambda *xs, axis=axis: jnp.stack(xs, axis),
            (f32(8, 6), f32(8, 6)),
        )
        for axis in (0, 1, 2)
        if hasattr(lax, "stack_p")
    ]
    found += [
        ("unstack", lambda x, axis=axis: jnp.unstack(x, axis=axis), (f32(3, 8),))
        for axis in (0, 1)
        if hasattr(lax, "unstack_p")
    ]
    return found


def gathers() -> list[Entry]:
    """Look-ups: whole rows, parts of rows, several indexed dims, batching dims."""

    def take(shape: tuple[int, ...], ids: tuple[int, ...], axis: int) -> Entry:
        function = partial(jnp.take, axis=axis, mode="clip")
        return "gather", function, (f32(*shape), i32(*ids))

    def along(shape: tuple[int, ...], ids: tuple[int, ...], axis: int) -> Entry:
        function = partial(jnp.take_along_axis, axis=axis, mode="clip")
        return "gather", function, (f32(*shape), i32(*ids))

    def raw(
        shape: tuple[int, ...],
        ids: tuple[int, ...],
        sizes: tuple[int, ...],
        **numbers: tuple[int, ...],
    ) -> Entry:
        dims = lax.GatherDimensionNumbers(**numbers)
        function = partial(
            lax.gather, dimension_numbers=dims, slice_sizes=sizes, mode="clip"
        )
        return "gather", function, (f32(*shape), i32(*ids))

    return [
        take((32, 16), (8,), 0),
        take((32, 16), (4, 6), 0),
        take((32, 16), (8,), 1),
        take((5, 7, 3), (2, 4), 1),
        take((32,), (8,), 0),
        along((8, 16), (8, 3), 1),
        along((2, 16, 6), (2, 4, 6), 1),
        raw(
            (32, 16),
            (8, 2),
            (1, 4),
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0, 1),
        ),
        raw(
            (32, 6, 16),
            (8, 2),
            (1, 1, 16),
            offset_dims=(1,),
            collapsed_slice_dims=(0, 1),
            start_index_map=(0, 1),
        ),
        raw(
            (4, 32, 16),
            (4, 8, 1),
            (1, 1, 16),
            offset_dims=(2,),
            collapsed_slice_dims=(1,),
            start_index_map=(1,),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(0,),
        ),
        raw(
            (6, 16),
            (8, 1),
            (2, 16),
            offset_dims=(1, 2),
            collapsed_slice_dims=(),
            start_index_map=(0,),
        ),
    ]


def scatters() -> list[Entry]:
    """Updates at indices: rows, points, parts of rows, batching dims."""

    def rows(method: str) -> Callable[..., Any]:
        return lambda x, ids, new: getattr(x.at[ids], method)(new)

    methods = {
        "scatter": "set",
        "scatter-add": "add",
        "scatter-mul": "multiply",
        "scatter-min": "min",
        "scatter-max": "max",
    }
    if hasattr(lax, "scatter_sub_p"):
        methods["scatter-sub"] = "subtract"
    found: list[Entry] = [
        (primitive, rows(method), (f32(32, 16), i32(8), f32(8, 16)))
        for primitive, method in methods.items()
    ]

    def raw(
        primitive: str,
        shape: tuple[int, ...],
        ids: tuple[int, ...],
        update: tuple[int, ...],
        **numbers: tuple[int, ...],
    ) -> Entry:
        dims = lax.ScatterDimensionNumbers(**numbers)
        bind = lax.scatter_add if primitive == "scatter-add" else lax.scatter
        function = partial(bind, dimension_numbers=dims)
        return primitive, function, (f32(*shape), i32(*ids), f32(*update))

    for primitive in ("scatter", "scatter-add"):
        found += [
            (primitive, rows(methods[primitive]), (f32(32), i32(8), f32(8))),
            (
                primitive,
                lambda x, ids, new, m=methods[primitive]: getattr(x.at[:, ids], m)(new),
                (f32(6, 32), i32(4), f32(6, 4)),
            ),
            raw(
                primitive,
                (32, 16),
                (8, 1),
                (8, 4),
                update_window_dims=(1,),
                inserted_window_dims=(0,),
                scatter_dims_to_operand_dims=(0,),
            ),
            raw(
                primitive,
                (4, 32, 16),
                (4, 8, 1),
                (4, 8, 16),
                update_window_dims=(2,),
                inserted_window_dims=(1,),
                scatter_dims_to_operand_dims=(1,),
                operand_batching_dims=(0,),
                scatter_indices_batching_dims=(0,),
            ),
        ]
    return found


def table() -> list[Entry]:
    """All entries of this file."""
    kinds = contractions, ragged, layout, pieces, gathers, scatters
    return [entry for kind in kinds for entry in kind()]
