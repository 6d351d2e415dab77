"""What a rule of a decision op says: a factor for every dim of every array."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
      flops: arithmetic of one execution.
      note: what the user should know of the operation, if anything.
    """

    sizes: list[int] = field(default_factory=list)
    operands: list[list[int | None]] = field(default_factory=list)
    results: list[list[int | None]] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    ties: list[tuple[int, int]] = field(default_factory=list)
    flops: float = 0.0
    note: str = ""

    def add(self, size: int, *, blocked: bool = False) -> int:
        """A new factor of extent `size`; returns its number."""
        self.sizes.append(size)
        if blocked:
            self.blocked.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def reductions(self) -> set[int]:
        """Factors of operands that no result has."""
        kept = {factor for dims in self.results for factor in dims}
        seen = {factor for dims in self.operands for factor in dims}
        return {factor for factor in seen - kept if factor is not None}


Rule = Callable[[Equation], OpRule]
