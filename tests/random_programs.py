"""Random JAX programs as data, which print as short Python functions.

A program is a list of `Op`s; each is one assignment in the text of a function, and the
text is what runs, so a program that fails can be read, copied and run. They are made by
`tests/random_maker.py`.
"""

import functools
import linecache
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HEADER = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
"""


@dataclass(frozen=True, kw_only=True)
class Array:
    """A variable of a program; dtype "key" for random keys."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool = False

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def abstract(self) -> jax.ShapeDtypeStruct:
        """As `jax.eval_shape` takes it."""
        dtype = jax.random.key(0).dtype if self.dtype == "key" else self.dtype
        return jax.ShapeDtypeStruct(self.shape, dtype)

    def filled(self, rng: np.random.Generator) -> jax.Array:
        """Values: floats all differ, so that orders have no ties."""
        if self.dtype == "key":
            key = jax.random.key(int(rng.integers(1000)))
            return jax.random.split(key, self.shape) if self.shape else key
        if self.dtype == "bool":
            return jnp.asarray(rng.random(self.shape) < 0.5)
        if self.dtype == "int32":
            return jnp.asarray(rng.integers(-2, 9, self.shape), jnp.int32)
        places = rng.permutation(self.size) + rng.random()
        values = 3.0 * places / max(self.size, 2) - 1.5
        return jnp.asarray(values.reshape(self.shape), jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A function inside the program, which may read all arrays before it."""

    name: str
    params: tuple[Array, ...]
    ops: tuple["Op", ...]
    results: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Op:
    """`outs = text`, behind the functions that the text calls."""

    kind: str
    text: str
    outs: tuple[Array, ...]
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function: its arguments, ops, and the names that it returns."""

    arguments: tuple[Array, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    constants: tuple[Array, ...] = ()  # arrays that the function closes over

    @property
    def text(self) -> str:
        """The program as a Python module."""
        whole = Block(
            name="program",
            params=self.arguments,
            ops=self.ops,
            results=self.results,
        )
        lines = [HEADER]
        for array in self.constants:
            values = f"np.linspace(-1, 1, {array.size}, dtype=np.float32)"
            lines.append(f"{array.name} = jnp.asarray({values}.reshape{array.shape})")
        return "\n".join([*lines, *lines_of(whole), ""])

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The program, as run from its text; its file is `random_program.py`."""
        file = "random_program.py"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)
        found: dict[str, Any] = {}
        exec(compile(self.text, file, "exec"), found)
        return found["program"]

    @property
    def abstract(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Abstract arguments."""
        return tuple(array.abstract for array in self.arguments)

    def filled(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Concrete arguments."""
        rng = np.random.default_rng(seed)
        return tuple(array.filled(rng) for array in self.arguments)

    def kinds(self) -> list[str]:
        """Kinds of all ops, those of inner functions included."""
        return list(_kinds(self.ops))


def _kinds(ops: Sequence[Op]):
    for op in ops:
        yield op.kind
        for block in op.blocks:
            yield from _kinds(block.ops)


def lines_of(block: Block, indent: str = "") -> list[str]:
    """A function as source lines."""
    described = ", ".join(f"{a.name}: {a.dtype}{list(a.shape)}" for a in block.params)
    names = ", ".join(array.name for array in block.params)
    inner = indent + "    "
    lines = [f"{indent}def {block.name}({names}):"]
    lines += [f"{inner}# {described}"] if block.params else []
    for op in block.ops:
        for function in op.blocks:
            lines += lines_of(function, inner)
        outs = ", ".join(array.name for array in op.outs)
        lines.append(f"{inner}{outs} = {op.text}")
    found = ", ".join(block.results)
    found = f"({found},)" if not indent or len(block.results) > 1 else found
    return [*lines, f"{inner}return {found}"]
