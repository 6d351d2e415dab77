"""What a rule of a decision op says: a factor for every dim of every array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lts.graph import Exchange
from lts.tracing.flatten import Equation


@dataclass(kw_only=True)
class OpRule:
    """Factors of one equation; `None` marks a dim of extent 1.

    Attributes:
      sizes: extent of every factor.
      operands, results: per array, the factor on each dim.
      blocked: factors that must not be sharded.
      pairs: two factors that one mesh axis may shard at once.
      ties: pairs of operands that have one layout (values and their scales).
      fixed: mesh axes that the program itself has bound (`shard_map`), by name: size,
        and the factor that each shards, or None. Such an op sums nothing.
      exchanges: collectives that the op's body asks for.
      passes: by number of an array (operands, then results), how often its bytes travel
        between memory and the chip, where that is not once.
      flops: arithmetic of one execution.
      note: what the user should know of the operation, if anything.
    """

    sizes: list[int] = field(default_factory=list)
    operands: list[list[int | None]] = field(default_factory=list)
    results: list[list[int | None]] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    ties: list[tuple[int, int]] = field(default_factory=list)
    fixed: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    passes: dict[int, int] = field(default_factory=dict)
    flops: float = 0.0
    note: str = ""

    def add(self, size: int, *, blocked: bool = False) -> int:
        """A new factor of extent `size`; returns its number."""
        self.sizes.append(size)
        if blocked:
            self.blocked.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def whole(self, shape: Sequence[int]) -> list[int | None]:
        """New factors for an array, none of which may be sharded."""
        return [self.add(extent, blocked=True) for extent in shape]

    def reductions(self) -> set[int]:
        """Factors of operands that no result has."""
        if self.fixed:
            return set()
        kept = {factor for dims in self.results for factor in dims}
        seen = {factor for dims in self.operands for factor in dims}
        return {factor for factor in seen - kept if factor is not None}


Rule = Callable[[Equation], OpRule]


def replicated(eq: Equation) -> OpRule:
    """Every array whole: each device does all of the work."""
    rule = OpRule()
    rule.operands = [rule.whole(tensor.shape) for tensor in eq.ins]
    rule.results = [rule.whole(tensor.shape) for tensor in eq.outs]
    return rule


def leading(eq: Equation, count: int) -> OpRule:
    """The first `count` dims of all arrays are one index each, the others whole.

    An array whose extent there is another (a broadcast one) is whole along it.
    """
    rule, arrays = OpRule(), (*eq.ins, *eq.outs)
    shared: list[int] = []
    for dim in range(count):
        extents = [tensor.shape[dim] for tensor in arrays if dim < len(tensor.shape)]
        shared.append(rule.add(max(extents, default=1)))
    laid: list[list[int | None]] = [
        [
            shared[dim]
            if dim < count and extent == rule.sizes[shared[dim]]
            else rule.add(extent, blocked=True)
            for dim, extent in enumerate(tensor.shape)
        ]
        for tensor in arrays
    ]
    rule.operands, rule.results = laid[: len(eq.ins)], laid[len(eq.ins) :]
    return rule


def pointwise(eq: Equation) -> OpRule:
    """Every dim passes through, of several operands to several results."""
    return leading(eq, max(len(tensor.shape) for tensor in (*eq.ins, *eq.outs)))
