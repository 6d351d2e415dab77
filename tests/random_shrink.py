"""A failing random program to a short one that fails alike, without hypothesis."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_programs import Array, Block, Op, Program

NAME = re.compile(r"\b[acfpv]\d+\b")


def _read(op: Op) -> set[str]:
    """Names in the text of an op and of its inner functions."""
    found = set(NAME.findall(op.text))
    for block in op.blocks:
        found |= set(block.results)
        for inner in block.ops:
            found |= _read(inner)
    return found


def _needed(ops: tuple[Op, ...], results: tuple[str, ...]) -> tuple[Op, ...]:
    """Ops that results need; a definition that a later op uses moves there."""
    wanted, kept = set(results), list[Op]()
    for op in reversed(ops):
        if wanted & {array.name for array in op.outs}:
            blocks = tuple(
                replace(b, ops=_needed(b.ops, (*b.results, *_all_read(b.ops))))
                if not b.ops
                else _trimmed(b)
                for b in op.blocks
            )
            kept.append(replace(op, blocks=blocks))
            wanted |= _read(kept[-1])
    return tuple(_with_definitions(kept[::-1], ops))


def _all_read(ops: tuple[Op, ...]) -> set[str]:
    return set().union(*map(_read, ops)) if ops else set()


def _trimmed(block: Block) -> Block:
    return replace(block, ops=_needed(block.ops, block.results))


def _with_definitions(kept: list[Op], ops: tuple[Op, ...]) -> Iterator[Op]:
    """Ops with every inner function that they call defined before the first call."""
    known = {block.name: block for op in ops for block in op.blocks}
    defined: set[str] = set()
    for op in kept:
        own = {block.name: block for block in op.blocks}
        missing = [
            known[name]
            for name in sorted(set(NAME.findall(op.text)) & known.keys())
            if name not in defined and name not in own
        ]
        defined |= own.keys() | {block.name for block in missing}
        yield replace(op, blocks=(*missing, *op.blocks))


def tidied(program: Program) -> Program:
    """Without ops, arguments and constants that no result needs."""
    ops = _needed(program.ops, program.results)
    read = _all_read(ops) | set(program.results)
    return replace(
        program,
        ops=ops,
        arguments=tuple(a for a in program.arguments if a.name in read),
        constants=tuple(c for c in program.constants if c.name in read),
    )


def _made(array: Array) -> str:
    """Text of some array like this one."""
    if array.dtype == "float32":
        values = f"jnp.linspace(-1.0, 1.0, {array.size})"
    else:
        values = f"jnp.arange({array.size}, dtype='{array.dtype}')"
    return f"{values}.reshape{array.shape}"


def _smaller_blocks(op: Op) -> Iterator[Op]:
    for i, block in enumerate(op.blocks):
        for j, inner in enumerate(block.ops):
            if inner.kind != "made" and all(a.dtype != "key" for a in inner.outs):
                text = ", ".join(map(_made, inner.outs))
                small = replace(inner, kind="made", text=text, blocks=())
                ops = (*block.ops[:j], small, *block.ops[j + 1 :])
                blocks = list(op.blocks)
                blocks[i] = replace(block, ops=ops)
                yield replace(op, blocks=tuple(blocks))
            for deeper in _smaller_blocks(inner):
                ops = (*block.ops[:j], deeper, *block.ops[j + 1 :])
                blocks = list(op.blocks)
                blocks[i] = replace(block, ops=ops)
                yield replace(op, blocks=tuple(blocks))


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,))
        half = len(program.results) // 2
        yield replace(program, results=program.results[half:])
        yield replace(program, results=program.results[:half])
    if len(program.ops) > 1:  # an earlier array as the result
        for op in program.ops:
            for array in op.outs:
                if array.dtype != "key" and array.name not in program.results:
                    yield replace(program, results=(array.name,))
    for i, op in enumerate(program.ops):
        if len(program.ops) == 1:
            break
        arguments = (*program.arguments, *op.outs)
        ops = (*program.ops[:i], *program.ops[i + 1 :])
        if any(out.name in _all_read(ops) for out in op.outs):
            yield replace(program, arguments=arguments, ops=ops)
    for i, op in enumerate(program.ops):
        for small in _smaller_blocks(op):
            ops = (*program.ops[:i], small, *program.ops[i + 1 :])
            yield replace(program, ops=ops)


def shrunk(
    program: Program, fails: Callable[[Program], bool], tries: int = 200
) -> Program:
    """The smallest program on the way down that still fails."""
    best = tidied(program)
    best = best if fails(best) else program
    progress = True
    while progress and tries > 0:
        progress = False
        for candidate in map(tidied, smaller(best)):
            tries -= 1
            if tries < 0:
                break
            if len(candidate.text) < len(best.text) and fails(candidate):
                best, progress = candidate, True
                break
    return best
