"""Records of arrays before they exist: shape, names of dims, form of the values.

Dims that count something (heads, experts) stand apart from the sizes of a matrix, so
that they can be sharded by themselves, and are never blocked together with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, TypeVar

from lts.models.architecture import Quantization

Params = dict[str, Any]
COUNTS = frozenset({"kv_heads", "group", "heads"})
"""Names of dims of a matrix that count: of block 1 where it is quantized."""


@dataclass(frozen=True, kw_only=True)
class NamedShape:
    """An array's shape, with a name for every dim."""

    shape: tuple[int, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Weight(NamedShape):
    """A parameter.

    Attributes:
      fan_in: how many products its output sums; 0 for a norm's scale.
      sides: per dim of a matrix that may be quantized "i" (an input), "o" (an output)
        or "." (a count); empty for what never is.
      routed: belongs to the routed experts.
    """

    fan_in: int = 0
    sides: str = ""
    routed: bool = False


Shape = TypeVar("Shape", bound=NamedShape)


def matrix(
    sizes: Mapping[str, int], inputs: str, outputs: str, *, each: str = ""
) -> Weight:
    """A matrix from names of dims.

    Args:
      sizes: extent by name.
      inputs, outputs: names of dims, separated by spaces.
      each: name of a leading dim that counts independent matrices.
    """
    named = [(name, ".") for name in each.split()]
    named += [(name, "i") for name in inputs.split()]
    named += [(name, "o") for name in outputs.split()]
    return Weight(
        shape=tuple(sizes[name] for name, _ in named),
        dims=tuple(name for name, _ in named),
        fan_in=prod(sizes[name] for name in inputs.split()),
        sides="".join("." if name in COUNTS else side for name, side in named),
        routed=each == "experts",
    )


def vector(sizes: Mapping[str, int], dims: str, fan_in: int = 0) -> Weight:
    """A bias, or with `fan_in` 0 a norm's scale: never quantized."""
    names = tuple(dims.split())
    return Weight(shape=tuple(sizes[n] for n in names), dims=names, fan_in=fan_in)


def stacked(array: Shape, repeats: int) -> Shape:
    """The array with a leading dim over layers."""
    more: dict[str, Any] = {
        "shape": (repeats, *array.shape),
        "dims": ("layer", *array.dims),
    }
    if isinstance(array, Weight) and array.sides:
        more["sides"] = "." + array.sides
    return replace(array, **more)


def blocks(weight: Weight, quantization: Quantization | None) -> tuple[int, ...] | None:
    """Elements along each dim that share a scale; None for a plain weight.

    Where a size is no multiple of the block, their greatest common divisor is taken.
    """
    if quantization is None or not weight.sides:
        return None
    if quantization.scope == "experts" and not weight.routed:
        return None
    extents = dict(zip("io", quantization.block, strict=True))
    return tuple(
        gcd(size, extents.get(side, 1))
        for size, side in zip(weight.shape, weight.sides, strict=True)
    )
