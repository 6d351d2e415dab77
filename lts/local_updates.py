"""`dynamic_update_slice` on each device's part, and in the array's order in memory.

XLA writes one position of a sharded dim, or all of them, where they lie. To write some
of them at an unknown place it gathers the whole array on every device. Here every
device writes those positions that are its own.

What is written often comes from a product, in whatever order of its dims suits that.
XLA then gives the updated array this order too: a cache of many tokens is transposed
before and after the loop over layers for the sake of one new token (measured on its
H100 target: 2 to 6 times the scratch). So what is written is put in row-major order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, Mesh, PartitionSpec


@dataclass(frozen=True, kw_only=True)
class UpdateForm:
    """An update of an array whose written dims may be sharded.

    Attributes:
      operand: spec of the array, and of the result.
      update: spec of what is written: whole along dims that it covers in part.
      dims: of the array, sharded and covered in part; with the mesh axes of each.
    """

    operand: PartitionSpec
    update: PartitionSpec
    dims: tuple[tuple[int, tuple[str, ...]], ...]

    def __call__(
        self,
        mesh: Mesh | AbstractMesh,
        equation: Any,
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """The updated array."""
        extents = operands[0].shape
        starts = [PartitionSpec()] * (len(operands) - 2)
        return jax.shard_map(
            lambda *local: self._write(extents, *local),
            mesh=mesh,
            in_specs=(self.operand, self.update, *starts),
            out_specs=self.operand,
            check_vma=False,
        )(*operands)

    def _write(
        self, extents: Sequence[int], array: jax.Array, new: jax.Array, *starts: Any
    ) -> jax.Array:
        """One device's part of the update.

        It reads a window as large as what is written (or as its part), puts in those
        positions that are written and its own, and writes the window back.
        """
        axes = dict(self.dims)
        window = [
            min(size, array.shape[dim]) if dim in axes else size
            for dim, size in enumerate(new.shape)
        ]
        place = [jnp.int32(0)] * new.ndim  # of the window, in this device's array
        shift = [jnp.int32(0)] * new.ndim  # of the window, in what is written, padded
        padding = [(0, 0, 0)] * new.ndim
        inside = jnp.ones((), bool)
        for dim, start in enumerate(starts):
            size, own = new.shape[dim], array.shape[dim]
            # As the primitive does: what is written lies inside the array.
            start = jnp.clip(jnp.int32(start), 0, extents[dim] - size)
            if dim in axes:
                first = lax.axis_index(axes[dim]) * own
                place[dim] = jnp.clip(start - first, 0, own - window[dim])
                ahead = first + place[dim] - start
                seen = lax.broadcasted_iota(jnp.int32, window, dim) + ahead
                inside = inside & (seen >= 0) & (seen < size)
                padding[dim] = (window[dim], window[dim], 0)
                shift[dim] = jnp.clip(ahead, -window[dim], size) + window[dim]
            elif own != size:
                place[dim] = start
        padded = lax.pad(new, jnp.zeros((), new.dtype), padding)
        wanted = lax.dynamic_slice(padded, shift, window)
        held = lax.dynamic_slice(array, place, window)
        written = jnp.where(inside, wanted, held)
        return lax.dynamic_update_slice(array, _row_major(written), place)


@dataclass(frozen=True, kw_only=True)
class PlainUpdate:
    """An update that XLA partitions, of what is written in row-major order.

    Attributes:
      update: spec of what is written.
    """

    update: PartitionSpec

    def __call__(
        self,
        mesh: Mesh | AbstractMesh,
        equation: Any,
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """The updated array."""
        array, new, *starts = operands
        if _is_even(new.shape, self.update, mesh):
            # In sight of a partitioner, the order would be that of the whole array.
            new = jax.shard_map(
                _row_major,
                mesh=mesh,
                in_specs=self.update,
                out_specs=self.update,
                check_vma=False,
            )(new)
        return equation.primitive.bind(array, new, *starts, **params)


def _row_major(array: jax.Array) -> jax.Array:
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))


def _is_even(
    shape: Sequence[int], spec: PartitionSpec, mesh: Mesh | AbstractMesh
) -> bool:
    """Whether all devices have parts of one size, as `shard_map` asks for."""
    for extent, entry in zip(shape, spec, strict=False):
        names = (entry,) if isinstance(entry, str) else entry or ()
        if extent % math.prod(mesh.shape[name] for name in names):
            return False
    return True


def update_form(
    extents: Sequence[int],
    sizes: Sequence[int],
    operand: PartitionSpec,
    update: PartitionSpec,
) -> UpdateForm | PlainUpdate:
    """The form of an update: a plain one where XLA moves nothing.

    Args:
      extents, sizes: of the array and of what is written.
      operand, update: specs.
    """
    dims = tuple(
        (dim, (entry,) if isinstance(entry, str) else tuple(entry))
        for dim, (entry, extent, size) in enumerate(
            zip(operand, extents, sizes, strict=False)
        )
        if entry and size < extent
    )
    if all(sizes[dim] == 1 for dim, _ in dims):
        return PlainUpdate(update=update)
    return UpdateForm(operand=operand, update=update, dims=dims)
