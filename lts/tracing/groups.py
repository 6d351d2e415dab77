"""Which arrays share one layout, and which of their dims are the same index.

`Groups` is a union-find over arrays, with one over their dims beside it. Arrays of one
group become one value of the graph, their dim classes its factors. Two dims of one
array are never the same class: a union that would make them so is refused, and the
caller makes an edge instead.
"""

import math
from collections.abc import Iterable
from typing import Any

from lts.tracing.flatten import Tensor


class UnionFind:
    """Classes of hashable keys; a key that was never seen is a class of its own."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, key: Any) -> Any:
        """Representative of the class of a key."""
        self._parent.setdefault(key, key)
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def union(self, a: Any, b: Any) -> None:
        """Put two classes together; that of `b` keeps its representative."""
        self._parent[self.find(a)] = self.find(b)


class Groups:
    """Union-find over tensors and over their dims."""

    def __init__(self) -> None:
        self._tensor: dict[int, int] = {}
        self._dim: dict[tuple[int, int], tuple[int, int]] = {}
        self._members: dict[tuple[int, int], dict[int, int]] = {}
        self._units: dict[tuple[int, int], int] = {}
        self._blocked: set[tuple[int, int]] = set()

    def add(self, tensor: Tensor) -> None:
        """Start a group of one, unless the tensor is known."""
        if tensor.index in self._tensor:
            return
        self._tensor[tensor.index] = tensor.index
        for dim, extent in enumerate(tensor.shape):
            key = (tensor.index, dim)
            self._dim[key] = key
            self._members[key] = {tensor.index: dim}
            self._units[key] = extent

    def group(self, tensor: Tensor) -> int:
        """Representative of a tensor's group."""
        index = tensor.index
        while self._tensor[index] != index:
            self._tensor[index] = self._tensor[self._tensor[index]]
            index = self._tensor[index]
        return index

    def dim(self, tensor: Tensor, dim: int) -> tuple[int, int]:
        """Representative of the class of a dim."""
        return self._find((tensor.index, dim))

    def _find(self, key: tuple[int, int]) -> tuple[int, int]:
        while self._dim[key] != key:
            self._dim[key] = self._dim[self._dim[key]]
            key = self._dim[key]
        return key

    def block(self, tensor: Tensor, dims: Iterable[int]) -> None:
        """Forbid sharding of these dims, and so of their classes."""
        self._blocked.update(self.dim(tensor, dim) for dim in dims)

    def is_blocked(self, root: tuple[int, int]) -> bool:
        """Whether a class must stay whole."""
        return root in self._blocked

    def units(self, root: tuple[int, int]) -> int:
        """What the number of ways must divide."""
        return self._units[root]

    def limit_units(self, tensor: Tensor, dim: int, units: int) -> None:
        """Coarsen the granularity of a dim's class."""
        root = self.dim(tensor, dim)
        self._units[root] = math.gcd(self._units[root], units)

    def unify(self, a: Tensor, b: Tensor, pairs: Iterable[tuple[int, int]]) -> bool:
        """Put two tensors in one group, dims `pairs` (of a, of b) being the same.

        Returns False, and changes nothing, if that would make two dims of one array
        the same.
        """
        roots = []
        for i, j in pairs:
            if a.shape[i] == 1 or b.shape[j] == 1:
                continue
            left, right = self.dim(a, i), self.dim(b, j)
            if left != right and self._clash(left, right):
                return False
            roots.append((left, right))
        for left, right in roots:
            self._join(left, right)
        self._tensor[self.group(a)] = self.group(b)
        return True

    def _clash(self, left: tuple[int, int], right: tuple[int, int]) -> bool:
        small, large = sorted((self._members[left], self._members[right]), key=len)
        return any(index in large for index in small)

    def _join(self, left: tuple[int, int], right: tuple[int, int]) -> None:
        left, right = self._find(left), self._find(right)
        if left == right:
            return
        if self._clash(left, right):  # an earlier pair of the same union made it so
            self._blocked |= {left, right}
            return
        if len(self._members[left]) > len(self._members[right]):
            left, right = right, left
        self._dim[left] = right
        self._members[right].update(self._members.pop(left))
        self._units[right] = math.gcd(self._units[right], self._units.pop(left))
        if left in self._blocked:
            self._blocked.add(right)
