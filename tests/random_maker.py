"""Composes random programs, op by op, of numbers that a `Draw` gives.

A draw is hypothesis, which shrinks the numbers, or numpy. The ops themselves are in
`tests/random_ops.py` and what it imports.

Values stay near [-4, 4]. Ops whose result jumps (comparisons, rounding, argmax) take
only *exact* arrays: those that no sum in another order, and no other vector length of
a transcendental function, can change in their last bit.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np

from tests.random_programs import HEADER, Array, Block, Op, Program, lines_of

MAX_SIZE = 512
"""Elements of the largest array."""

EXTENTS = (8, 4, 2, 16, 1, 3, 6, 5, 12, 7)


class Draw(Protocol):
    """Where a program's numbers come from."""

    def below(self, stop: int) -> int:
        """A number in `[0, stop)`; smaller ones make simpler programs."""
        ...


class RandomDraw:
    """Numbers of a seed."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, stop: int) -> int:
        """A number in `[0, stop)`."""
        return int(self.rng.integers(stop))


class Rejected(Exception):
    """The op does not fit here: another one is drawn."""


@dataclass(kw_only=True)
class _Scope:
    arrays: list[Array]
    ops: list[Op] = field(default_factory=list)
    closed: bool = False  # reads nothing of the scopes around it


class Maker:
    """A program in the making: arrays that ops may read, and what they append."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.arguments: list[Array] = []
        self.constants: list[Array] = []
        self.scopes = [_Scope(arrays=[])]
        self.count = 0
        self.extents = [self.pick(EXTENTS) for _ in range(3)]

    def pick(self, found: Sequence[Any]) -> Any:
        """One of them, the first in the simplest program."""
        if not found:
            raise Rejected
        return found[self.draw.below(len(found))]

    def chance(self, percent: int) -> bool:
        """True that often; False in the simplest program."""
        return self.draw.below(100) >= 100 - percent

    def between(self, low: int, high: int) -> int:
        """A number, both ends included."""
        return low + self.draw.below(high - low + 1)

    def name(self, head: str) -> str:
        """A new name."""
        self.count += 1
        return f"{head}{self.count}"

    def extent(self) -> int:
        """Of a dim, mostly one that others have."""
        return self.pick(EXTENTS if self.chance(20) else self.extents)

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        """A shape of `low` to `high` dims."""
        shape = [self.extent() for _ in range(self.between(low, high))]
        while math.prod(shape) > MAX_SIZE:
            shape[int(np.argmax(shape))] //= 2
        return tuple(shape)

    @property
    def visible(self) -> list[Array]:
        """Arrays that an op may read, the newest first."""
        found: list[Array] = []
        for scope in reversed(self.scopes):
            found += reversed(scope.arrays)
            if scope.closed:
                return found
        return [*found, *reversed(self.arguments), *reversed(self.constants)]

    def fresh(self, shape: Sequence[int], dtype: str = "float32") -> Array:
        """A new argument; at times made in place, or closed over."""
        shape = tuple(shape)
        if math.prod(shape) > MAX_SIZE:
            raise Rejected
        is_closed = any(scope.closed for scope in self.scopes)
        if dtype == "float32" and shape and (is_closed or self.chance(15)):
            if not is_closed and self.chance(40):
                head = {"shape": shape, "dtype": dtype, "exact": True}
                self.constants.append(Array(name=self.name("c"), **head))
                return self.constants[-1]
            n = math.prod(shape)
            (made,) = self.emit("make", f"jnp.linspace(-1.0, 1.0, {n}).reshape{shape}")
            return made
        if is_closed:
            raise Rejected
        new = Array(name=self.name("a"), shape=shape, dtype=dtype, exact=True)
        self.arguments.append(new)
        return new

    def some(
        self,
        low: int = 0,
        high: int = 4,
        *,
        dtype: str = "float32",
        exact: bool = False,
        ok: Callable[[Array], bool] = lambda _: True,
        shape: tuple[int, ...] | None = None,
    ) -> Array:
        """An array of `low` to `high` dims; `shape` for a new one if none fits."""
        found = [
            a
            for a in self.visible
            if a.dtype == dtype
            and low <= a.rank <= high
            and (a.exact or not exact)
            and ok(a)
        ]
        if found and not self.chance(15):
            return self.pick(found[:4] if not self.chance(30) else found)
        new = self.fresh(self.shape(low, high) if shape is None else shape, dtype)
        if not ok(new):
            raise Rejected
        return new

    def like(
        self, shape: Sequence[int], dtype: str = "float32", *, exact: bool = False
    ) -> Array:
        """An array of this very shape."""
        shape = tuple(shape)
        found = [
            a
            for a in self.visible
            if a.shape == shape and a.dtype == dtype and (a.exact or not exact)
        ]
        if found and not self.chance(25):
            return self.pick(found)
        return self.fresh(shape, dtype)

    def emit(
        self,
        kind: str,
        text: str,
        *operands: Array,
        exact: bool = False,
        blocks: Sequence[Block] = (),
    ) -> tuple[Array, ...]:
        """Append an op; `{0}` in its text is the first operand.

        Args:
          exact: whether results are, if all operands are; integers always are.

        Raises:
          Rejected: if a result is too large.
        """
        text = text.format(*(array.name for array in operands))
        keep = exact and all(array.exact for array in operands)
        op = Op(kind=kind, text=text, outs=(), blocks=tuple(blocks))
        outs = tuple(
            Array(
                name=self.name("v"),
                shape=tuple(found.shape),
                dtype="key" if "key" in str(found.dtype) else str(found.dtype),
                exact=keep or str(found.dtype) in ("int32", "bool"),
            )
            for found in self._avals(op)
        )
        if any(array.size > MAX_SIZE or array.size == 0 for array in outs):
            raise Rejected
        scope = self.scopes[-1]
        defined = [block for own in scope.ops for block in own.blocks]
        new = tuple(block for block in op.blocks if block not in defined)
        scope.arrays += outs
        scope.ops.append(replace(op, outs=outs, blocks=new))
        return outs

    def _avals(self, op: Op) -> list[Any]:
        names = {array.name: array for array in reversed(self.visible)}
        probe = Block(
            name="probe",
            params=tuple(names.values()),
            ops=(replace(op, outs=(Array(name="out", shape=(), dtype=""),)),),
            results=("out",),
        )
        found: dict[str, Any] = {}
        exec("\n".join([HEADER, *lines_of(probe)]), found)
        try:
            made = jax.eval_shape(found["probe"], *(a.abstract for a in names.values()))
        except NotImplementedError as error:  # of jax: a vmap of some ops, gradients
            raise Rejected from error
        return jax.tree.leaves(made)

    def block(
        self,
        params: Sequence[tuple[tuple[int, ...], str, bool]],
        wanted: int,
        ops: Sequence[Callable[["Maker"], None]],
        *,
        closed: bool = False,
    ) -> Block:
        """A function of arrays (shape, dtype, exact) that gives the first ones anew.

        Args:
          wanted: how many of its parameters it returns, changed.
          ops: that it may be made of.
          closed: whether it reads its parameters alone.
        """
        arrays = tuple(
            Array(name=self.name("p"), shape=tuple(shape), dtype=dtype, exact=exact)
            for shape, dtype, exact in params
        )
        self.scopes.append(_Scope(arrays=list(arrays), closed=closed))
        for _ in range(self.between(1, 4)):
            attempt(self, ops)
        results = [self._changed(array) for array in arrays[:wanted]]
        scope = self.scopes.pop()
        return Block(
            name=self.name("f"),
            params=arrays,
            ops=tuple(scope.ops),
            results=tuple(results),
        )

    def _changed(self, array: Array) -> str:
        """An array of a shape, made in this scope."""
        made = [out for op in self.scopes[-1].ops for out in op.outs]
        same = [a for a in made if (a.shape, a.dtype) == (array.shape, array.dtype)]
        if same:
            return same[-1].name
        if array.dtype != "float32":
            return array.name
        floats = [a for a in made if a.dtype == "float32"]
        if not floats:
            return self.emit("tanh", "jnp.tanh({0})", array)[0].name
        text = "jnp.tanh({0} + 0.5 * {1}.mean())"
        return self.emit("mean", text, array, floats[-1])[0].name


def attempt(maker: Maker, ops: Sequence[Callable[[Maker], None]]) -> None:
    """Append one of some ops; what does not fit leaves no trace but arguments."""
    for _ in range(20):
        op = maker.pick(ops)
        scope, depth = maker.scopes[-1], len(maker.scopes)
        before = len(scope.arrays), len(scope.ops)
        try:
            op(maker)
            return
        except Rejected:
            del maker.scopes[depth:]
            del scope.arrays[before[0] :], scope.ops[before[1] :]


def random_program(
    draw: Draw, ops: Sequence[Callable[[Maker], None]], *, low: int = 3, high: int = 30
) -> Program:
    """A program of `low` to `high` ops; its results are what nothing else reads."""
    maker = Maker(draw)
    wanted = min(maker.between(low, high), maker.between(low, high))
    scope = maker.scopes[0]
    while len(scope.ops) < wanted or all(a.dtype == "key" for a in scope.arrays):
        attempt(maker, ops)
    results = _results(maker)
    if maker.chance(20):
        maker.fresh(maker.shape(1, 3))  # an argument that nothing reads
    used = "\n".join(lines_of(_whole(maker.scopes[0].ops)))
    return Program(
        arguments=tuple(maker.arguments),
        ops=tuple(maker.scopes[0].ops),
        results=tuple(array.name for array in results),
        constants=tuple(c for c in maker.constants if c.name in used),
    )


def _results(maker: Maker) -> list[Array]:
    """What nothing reads, else XLA would drop it; now and then what something reads."""
    made = [a for a in maker.scopes[0].arrays if a.dtype != "key"]
    text = "\n".join(lines_of(_whole(maker.scopes[0].ops)))
    names = Counter(re.findall(r"\bv\d+\b", text))
    results = [a for a in made if names[a.name] == 1] or made[-1:]
    given = [a for a in maker.arguments if a.dtype != "key"]
    if given and maker.chance(25):
        results.append(maker.pick(given))
    if maker.chance(50):
        results.append(maker.pick(made))
    return results


def _whole(ops: Sequence[Op]) -> Block:
    return Block(name="program", params=(), ops=tuple(ops), results=())


def axis_of(m: Maker, a: Array) -> int:
    """One of its dims."""
    return m.pick(range(a.rank))


def nonlocal_int(m: Maker) -> Array:
    """A scalar integer: an index, a condition."""
    return m.some(0, 0, dtype="int32")
