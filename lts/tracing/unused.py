"""Equations whose results nothing needs: XLA drops them, so they are not priced.

`jax.grad` leaves the loss itself behind; a caller may discard logits, or a cache.
"""

from collections import defaultdict
from dataclasses import replace

from lts.tracing.program import Equation, FlatProgram, Tensor


def without_unused(program: FlatProgram) -> FlatProgram:
    """The program without equations that no result and no effect needs."""
    makers: dict[int, list[Equation]] = defaultdict(list)
    for eq in program.equations:
        for out in eq.outs:
            makers[out.index].append(eq)
    passed: dict[int, list[Tensor]] = defaultdict(list)
    for source, target in program.passed:
        passed[target.index].append(source)
    effects = [eq for eq in program.equations if not eq.outs]
    kept, needed = set(map(id, effects)), set[int]()
    waiting = [*program.results, *program.effects]
    waiting += [tensor for eq in effects for tensor in eq.ins]
    while waiting:  # a loop's carry is needed by what makes it, too
        tensor = waiting.pop()
        if tensor.index in needed:
            continue
        needed.add(tensor.index)
        waiting += passed[tensor.index]
        for eq in makers[tensor.index]:
            kept.add(id(eq))
            waiting += eq.ins
    needed |= {tensor.index for tensor in program.arguments}

    def seen(tensor: Tensor) -> Tensor:
        """One that no equation is left to read has no layout either."""
        return tensor if tensor.index in needed else replace(tensor, is_local=True)

    return replace(
        program,
        scopes={path: list(map(seen, own)) for path, own in program.scopes.items()},
        equations=[eq for eq in program.equations if id(eq) in kept],
        slices=[(tensor, n) for tensor, n in program.slices if tensor.index in needed],
        branches=[],
    )
