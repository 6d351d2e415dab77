"""Updates at indices (`x.at[i].set(y)`) on each device's part of the array.

Where an indexed dim is sharded, every device applies the updates that fall on what it
holds: it counts indices from its own first element, and drops what lies outside. Where
updates are sharded, their sums are added up afterwards. XLA knows some of these cases
and gathers the array in others, depending on where the indices come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec


@dataclass(frozen=True, kw_only=True)
class IndexedForm:
    """An update at indices.

    Attributes:
      operands: specs of array, indices and updates; the array's is the result's.
      sums: mesh axes that shard indices and updates, but not the array.
    """

    operands: tuple[PartitionSpec, ...]
    sums: tuple[str, ...]

    def __call__(
        self,
        mesh: Mesh | AbstractMesh,
        equation: Any,
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """The updated array."""
        array, _, new = operands
        spec, numbers = self.operands[0], params["dimension_numbers"]
        sizes = window_sizes(array.shape, new.shape, numbers)
        axes = {  # of dims of which an update writes a part
            dim: entry
            for dim, entry in enumerate(spec)
            if entry and sizes[dim] < array.shape[dim]
        }
        room = np.subtract(array.shape, sizes)
        targets = list(numbers.scatter_dims_to_operand_dims)

        def run(array: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
            own = dict(params)
            if set(targets) & axes.keys():
                at = jnp.int32(at) if at.dtype.itemsize < 4 else at
                # Scalars, stacked: the body of a remat has no place for constants.
                row = (*(1,) * (at.ndim - 1), len(targets))
                if own["mode"] == lax.GatherScatterMode.CLIP:
                    last = jnp.stack([jnp.int32(n) for n in room[targets]])
                    at = jnp.clip(at, 0, last.astype(at.dtype).reshape(row))
                firsts = [
                    lax.axis_index(axes[dim]) * array.shape[dim] if dim in axes else 0
                    for dim in targets
                ]
                at = jnp.int32(at) - jnp.stack(jnp.int32(firsts)).reshape(row)
                own["mode"] = lax.GatherScatterMode.FILL_OR_DROP
            if self.sums:  # the array itself counts once
                first = lax.axis_index(self.sums) == 0
                array = jnp.where(first, array, jnp.zeros_like(array))
            # XLA reads the wrong place for a single index that lies outside a slice of
            # a whole array, if it sees that the part is one.
            array = lax.optimization_barrier(array)
            out = equation.primitive.bind(array, at, new, **own)
            return lax.psum(out, self.sums) if self.sums else out

        return jax.shard_map(
            run, mesh=mesh, in_specs=self.operands, out_specs=spec, check_vma=False
        )(*operands)


def window_sizes(
    array: Sequence[int], new: Sequence[int], numbers: Any
) -> tuple[int, ...]:
    """What one update writes along each dim of the array.

    Args:
      array, new: shapes of the array and of the updates.
      numbers: `jax.lax.ScatterDimensionNumbers`.
    """
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(sorted(numbers.update_window_dims))
    return tuple(1 if dim in absent else new[next(window)] for dim in range(len(array)))
