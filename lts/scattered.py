"""A product whose sums end scattered runs as `shard_map`, which scatters as it sums.

Left to a partitioner such a product becomes an all-reduce and a slice, or something
else over axes that are idle, depending on the backend. So does one that sums over two
factors, each split over axes of its own: XLA makes an all-reduce for each. A
convolution sums in this form in any case: with groups of the batch (the gradient of a
grouped kernel) XLA adds up over axes that shard nothing, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from lts.graph import Node
from lts.layout import array_hops, op_ends, resolved, scatters_sums, spec_of, waypoints
from lts.mesh import MeshAxis

CONVOLUTION = "conv_general_dilated"
PRODUCTS = frozenset({"dot_general", CONVOLUTION})


@dataclass(frozen=True, kw_only=True)
class ScatterForm:
    """A product of each device's parts, summed over mesh axes.

    Attributes:
      operands, result: specs.
      scattered: mesh axes, and the dim over which their sum ends scattered, in order.
      whole: mesh axes whose sum every device gets.
    """

    operands: tuple[PartitionSpec, ...]
    result: PartitionSpec
    scattered: tuple[tuple[tuple[str, ...], int], ...]
    whole: tuple[str, ...]

    def __call__(
        self,
        mesh: Mesh | AbstractMesh,
        equation: Any,
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """The product, summed and scattered."""

        def run(*local: jax.Array) -> jax.Array:
            out = equation.primitive.bind(*local, **params)
            for axes, dim in self.scattered:
                out = jax.lax.psum_scatter(out, axes, scatter_dimension=dim, tiled=True)
            return jax.lax.psum(out, self.whole) if self.whole else out

        return jax.shard_map(
            run,
            mesh=mesh,
            in_specs=self.operands,
            out_specs=self.result,
            check_vma=False,
        )(*operands)


def scatter_form(
    node: Node,
    numbers: np.ndarray,
    value_factors: Sequence[int | None],
    value_numbers: np.ndarray,
    axes: Sequence[MeshAxis],
) -> ScatterForm | None:
    """The form of a product that scatters its sums; None where XLA sums as well.

    Arguments as `lts.local_ops.local_form`.
    """
    if node.primitive not in PRODUCTS:
        return None
    (result,) = node.results
    source, target = op_ends(
        result.factors, node, numbers, value_factors, value_numbers
    )
    shape = result.array.shape
    names = np.array([axis.name for axis in axes])
    scattered, whole = [], ()
    even = scatters_sums(node.primitive, shape, source, target, axes)
    for hop in array_hops(source, target, shape, axes, scatters=even):
        taking = tuple(names[hop.axes].tolist())
        if hop.kind == "reduce_scatter":
            dim = int(hop.states[hop.axes][0]) - 1
            scattered.append((taking, dim))
        elif hop.kind == "all_reduce":
            whole = taking
    partial = np.array([axis.size > 1 for axis in axes]) & (source == len(shape) + 1)
    several = len(set(numbers[partial].tolist())) > 1
    if not scattered and not (whole and (several or node.primitive == CONVOLUTION)):
        return None
    return ScatterForm(
        operands=tuple(
            spec_of(o.factors, resolved(numbers, node, o.factors), axes)
            for o in node.operands
        ),
        result=waypoints(source, target, shape, axes, scatters=even)[0],
        scattered=tuple(scattered),
        whole=whole,
    )
