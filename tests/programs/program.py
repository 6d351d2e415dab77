"""What a test needs of a program: a function, and arguments by shape or by value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """A function and its arguments; `donated` names those that it may overwrite.

    Parameters are `jax.ShapeDtypeStruct`s: any width costs nothing until `filled`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    donated: tuple[str, ...] = ()

    def filled(self) -> tuple[Any, ...]:
        """The arguments with numbers for shapes: floats by their fan-in, integers 0."""
        rng = np.random.default_rng(0)

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return np.zeros(leaf.shape, leaf.dtype)
            fan_in = leaf.shape[-2] if len(leaf.shape) > 1 else 1
            return (rng.standard_normal(leaf.shape) / fan_in**0.5).astype(leaf.dtype)

        return jax.tree.map(fill, self.args)


def token_ids(batch: int, length: int, vocab: int) -> np.ndarray:
    """[batch, length], no two rows alike."""
    count = np.arange(batch * length, dtype=np.int32)
    return (count * 7 % vocab).reshape(batch, length)


def shape(*extents: int) -> jax.ShapeDtypeStruct:
    """A float32 array to be filled."""
    return jax.ShapeDtypeStruct(extents, "float32")
