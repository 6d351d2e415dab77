"""`dynamic_update_slice` on each device's part, where a partitioner would gather.

XLA writes one position of a sharded dim, or all of them, where they lie. To write some
of them at an unknown place it gathers the whole array on every device. Here every
device writes those positions that are its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
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
        return lax.dynamic_update_slice(array, written, place)


def update_form(
    extents: Sequence[int],
    sizes: Sequence[int],
    operand: PartitionSpec,
    update: PartitionSpec,
) -> UpdateForm | None:
    """The form of an update; None where XLA moves nothing.

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
        return None
    return UpdateForm(operand=operand, update=update, dims=dims)
