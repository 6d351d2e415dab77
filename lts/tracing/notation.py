"""Sharding rules as text: which dims of an equation's arrays are the same index.

Three ways to write them, for a matrix product:

- `(i, k), (k, j) -> (i, j)`, one bracket per array;
- `([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}`, as Shardy prints them;
- `i k, k j -> i j`, as jax's `custom_partitioning` takes them, with `...` for leading
  dims and `(i j)` for a dim that two indices make up.

The first and the last take a factor that no result has as a reduction, unless
`reduction={...}` follows; Shardy's have only the reductions that they list. `!i` and
`need_replication={i}` keep a dim whole.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lts.tracing.flatten import Equation, Tensor
from lts.tracing.op_rule import OpRule, Rule

Dim = tuple[str, ...]
"""Names of the factors of one dim, outermost first; `("...",)` for leading dims."""

_LISTS = "reduction need_replication permutation blocked_propagation".split()
_LIST = re.compile(rf"({'|'.join(_LISTS)})\s*=\s*\{{([^{{}}]*)\}}")
_SIZES = re.compile(r"\{([^{}]*)\}")
_SIZE = re.compile(r"\s*(\w+)\s*=\s*(\d+)\s*")
_NAME = re.compile(r"!?[A-Za-z_]\w*")
_SHARDY_NAME = re.compile(r"[a-z](?:_\d+)?")
_EXAMPLES = "(i, k), (k, j) -> (i, j)"


@dataclass(frozen=True, kw_only=True)
class Notation:
    """A rule that was read, not yet laid on an equation.

    Attributes:
      text: as it was written.
      operands, results: per array, its dims.
      sizes: extents that the text gives, by name.
      whole: names that must not be sharded.
      reductions: names that are summed over; None: all that no result has.
    """

    text: str
    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: dict[str, int]
    whole: frozenset[str]
    reductions: frozenset[str] | None


def _unreadable(text: str, place: int, what: str) -> ValueError:
    return ValueError(
        f"cannot read the sharding rule {text!r}: {what}; write operands and results "
        f"as in '{_EXAMPLES}'\n  {text}\n  {' ' * place}^"
    )


def parse(text: str) -> Notation:
    """Read a rule.

    Raises:
      ValueError: if it cannot be read; a caret stands under the place.
    """
    plain = _blanked(text, r"#?sdy\.\w+\s*[=<]|(?<!-)>\s*$|\bcustom\s*>?\s*$")
    lists: dict[str, set[str]] = {}
    for found in _LIST.finditer(plain):
        names = {part.strip() for part in found[2].split(",") if part.strip()}
        lists.setdefault(found[1], set()).update(names)
    plain = _LIST.sub(lambda found: " " * len(found[0]), plain)
    sizes = {}
    for found in _SIZES.finditer(plain):
        for part in found[1].split(","):
            size = _SIZE.fullmatch(part)
            if size is None:
                raise _unreadable(text, found.start(), "a size is no 'name=number'")
            sizes[size[1]] = int(size[2])
    plain = _SIZES.sub(lambda found: " " * len(found[0]), plain)
    arrows = [found.start() for found in re.finditer("->", plain)]
    if len(arrows) != 1:
        place = arrows[1] if arrows else len(plain.rstrip())
        raise _unreadable(text, place, f"{len(arrows)} arrows '->', not one")
    read = _reader(plain)
    left, right = plain[: arrows[0]], plain[arrows[0] + 2 :]
    operands = tuple(read(text, left, 0))
    results = tuple(read(text, right, arrows[0] + 2))
    if not right.strip():
        raise _unreadable(text, len(plain.rstrip()), "no result")
    names = [n for array in (*operands, *results) for dim in array for n in dim]
    whole = {n.removeprefix("!") for n in names if n.startswith("!")}
    whole.update(*(lists[kind] for kind in lists if kind != "reduction"))
    known = {n.removeprefix("!") for n in names}
    for name in sorted(set().union(*lists.values()) - known):
        place = text.rindex(name)
        raise _unreadable(text, place, f"{name!r} is on no dim")
    listed = "reduction" in lists or read is _shardy_side
    return Notation(
        text=text,
        operands=_without_marks(operands),
        results=_without_marks(results),
        sizes=sizes,
        whole=frozenset(whole),
        reductions=frozenset(lists.get("reduction", ())) if listed else None,
    )


def _blanked(text: str, pattern: str) -> str:
    return re.sub(pattern, lambda found: " " * len(found[0]), text)


def _without_marks(arrays: Sequence[Sequence[Dim]]) -> tuple[tuple[Dim, ...], ...]:
    return tuple(
        tuple(tuple(name.removeprefix("!") for name in dim) for dim in dims)
        for dims in arrays
    )


def _reader(plain: str):
    """How the arrays are written: Shardy's brackets, ours, or names with spaces."""
    if "[" in plain:
        return _shardy_side
    brackets = r"\s*(\(\s*(!?\w+\s*(,\s*!?\w+\s*)*)?,?\s*\)\s*,?\s*)*"
    sides = plain.split("->")
    if any("(" in side for side in sides) and all(
        re.fullmatch(brackets, side) for side in sides
    ):
        return _bracket_side
    commas_inside = re.search(r"\([^()]*,[^()]*\)", plain)
    return _bracket_side if commas_inside else _spaced_side


def _brackets(text: str, side: str, start: int, pattern: str) -> Iterator[re.Match]:
    """Brackets of a side; nothing but commas may stand between them."""
    rest = _blanked(side, pattern)
    stray = re.search(r"[^\s,]", rest)
    if stray:
        raise _unreadable(text, start + stray.start(), f"stray {stray[0]!r}")
    yield from re.finditer(pattern, side)


def _bracket_side(text: str, side: str, start: int) -> Iterator[tuple[Dim, ...]]:
    for found in _brackets(text, side, start, r"\(([^()]*)\)"):
        yield tuple(
            (_checked(text, part, start + found.start(1)),)
            for part in found[1].split(",")
            if part.strip()
        )


def _shardy_side(text: str, side: str, start: int) -> Iterator[tuple[Dim, ...]]:
    side = side.replace("(", " ").replace(")", " ")
    for found in _brackets(text, side, start, r"\[([^\[\]]*)\]"):
        dims = []
        for part in found[1].split(","):
            names = _SHARDY_NAME.findall(part)
            if "".join(names) != part.strip():
                place = start + found.start(1)
                raise _unreadable(text, place, f"{part.strip()!r} is no factor")
            dims.append(tuple(names))
        yield tuple(dim for dim in dims if dim)


def _spaced_side(text: str, side: str, start: int) -> Iterator[tuple[Dim, ...]]:
    for array in re.finditer(r"[^,]+|(?<=,)(?=,|$)|^(?=,)", side):
        here = start + array.start()
        dims: list[Dim] = []
        for found in re.finditer(r"\.\.\.|\([^()]*\)|[^\s()]+|[()]", array[0]):
            place = here + found.start()
            if found[0] == "...":
                if dims:
                    raise _unreadable(text, place, "'...' must come first")
                dims.append(("...",))
                continue
            names = found[0].strip("()").split()
            if found[0] in ("(", ")") or not names:
                raise _unreadable(text, place, "a bracket without its other half")
            dims.append(tuple(_checked(text, name, place) for name in names))
        yield tuple(dims)


def _checked(text: str, name: str, place: int) -> str:
    name = name.strip()
    if not _NAME.fullmatch(name):
        place = text.find(name, place)
        raise _unreadable(text, place, f"{name!r} is no name of a factor")
    return name


def rule_from_notation(text: str) -> Rule:
    """The rule that a notation states.

    Raises:
      ValueError: if it cannot be read; by the rule, if it does not fit an equation.
    """
    notation = parse(text)
    return lambda eq: _laid(notation, eq)


def _laid(notation: Notation, eq: Equation) -> OpRule:
    """The notation on an equation's arrays."""
    rule, numbers = OpRule(), dict[str, int]()

    def misfit(what: str) -> ValueError:
        return ValueError(f"rule {notation.text!r} of {eq.primitive}{what}")

    def spread(tensor: Tensor, dims: Sequence[Dim]) -> list[Dim]:
        if dims and dims[0] == ("...",):
            leading = len(tensor.shape) - len(dims) + 1
            dims = [(f"...{i}",) for i in range(max(leading, 0))] + list(dims[1:])
        if len(dims) != len(tensor.shape):
            names = [" ".join(dim) for dim in dims]
            raise misfit(f": {names} has {len(dims)} dims, the array {tensor.shape}")
        return list(dims)

    def pairs(tensors: Sequence[Tensor], sides, what: str) -> list[list[Dim]]:
        if len(tensors) != len(sides):
            raise misfit(f" has {len(sides)} {what}, the equation {len(tensors)}")
        return [spread(t, dims) for t, dims in zip(tensors, sides, strict=True)]

    operands = pairs(eq.ins, notation.operands, "operands")
    results = pairs(eq.outs, notation.results, "results")
    arrays = [*zip(eq.ins, operands, strict=True), *zip(eq.outs, results, strict=True)]
    sizes = dict(notation.sizes)
    minors = {name for _, dims in arrays for dim in dims for name in dim[1:]}
    for tensor, dims in arrays:
        for dim, extent in zip(dims, tensor.shape, strict=True):
            if len(dim) == 1 and sizes.setdefault(dim[0], extent) != extent:
                raise misfit(
                    f": {dim[0]!r} is {sizes[dim[0]]} in one array and {extent} in "
                    "another; give them two names"
                )
    kept = {name for dims in results for dim in dims for name in dim}

    def is_whole(name: str) -> bool:
        summed = notation.reductions is None or name in notation.reductions
        return name in notation.whole | minors or not (name in kept or summed)

    def factor(dim: Dim, extent: int) -> int:
        name = dim[0]  # the outermost: only it can be sharded in contiguous parts
        if name not in sizes or extent % sizes[name]:
            raise misfit(
                f": {name!r} is the outer part of a dim of {extent}; give its size "
                f"after the rule, as in '{{{name}=4}}'"
            )
        if name not in numbers:
            numbers[name] = rule.add(sizes[name], blocked=is_whole(name))
        return numbers[name]

    laid: list[list[int | None]] = [
        [factor(dim, extent) for dim, extent in zip(dims, tensor.shape, strict=True)]
        for tensor, dims in arrays
    ]
    rule.operands, rule.results = laid[: len(operands)], laid[len(operands) :]
    return rule
