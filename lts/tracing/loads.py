"""What ops load: weights and caches as they are stored, and slices of stacked ones."""

import math
from collections.abc import Callable

from lts.graph import NodeKind
from lts.tracing.build import Draft
from lts.tracing.flatten import Tensor
from lts.tracing.follow import is_reduction


class Loads:
    """Which stored array an operand is made of.

    Args:
      node_of: index of the value that a tensor belongs to, or None.
    """

    def __init__(self, draft: Draft, node_of: Callable[[Tensor], int | None]) -> None:
        self.draft = draft
        self.node_of = node_of
        self.writers = {
            eq.outs[0].index: eq for eq in draft.follows if eq.primitive != "link"
        }
        pairs = zip(draft.program.arguments, draft.arguments, strict=True)
        kinds = (NodeKind.PARAMETER, NodeKind.CACHE)
        self.stored = {
            node_of(tensor) for tensor, argument in pairs if argument.kind in kinds
        } - {None}

    def origin(self, tensor: Tensor) -> Tensor | None:
        """The weight or cache that elementwise work makes a tensor of, or None."""
        node = self.node_of(tensor)
        return self._source(tensor) if node in self.stored else None

    def _source(self, tensor: Tensor) -> Tensor | None:
        node, size = self.node_of(tensor), math.prod(tensor.shape)
        eq = self.writers.get(tensor.index)
        while eq is not None and not is_reduction(eq.primitive):
            same = [
                t
                for t in eq.ins
                if math.prod(t.shape) == size and self.node_of(t) == node
            ]
            if len(same) != 1:
                return None
            (tensor,) = same
            eq = self.writers.get(tensor.index)
        return tensor

    def copied_bytes(self) -> float:
        """Bytes moved to copy slices of stacked arrays in scans, all trips.

        XLA reads and writes a slice before an op reads it; one that is updated is
        copied out of the stacked array and into the new one (measured on its H100
        target).
        """
        loaded = {
            origin.index
            for decision in self.draft.decisions
            for tensor in decision.equation.ins
            if (origin := self._source(tensor)) is not None
        }
        updated = {eq.ins[0].index for eq in self.draft.updates}
        total = 0.0
        for tensor, trips in self.draft.program.slices:
            times = 4 if tensor.index in updated else 2 * (tensor.index in loaded)
            total += times * tensor.itemsize * math.prod(tensor.shape) * trips
        return total
