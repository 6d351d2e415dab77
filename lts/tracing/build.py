"""A flat program to an `OpGraph`: groups of arrays, decision ops, edges, kernels.

First pass (`_Builder.read`): every equation either ties arrays into groups (a follow
rule), or becomes a decision op. An array that is broadcast stays *pending* until an
elementwise operation joins it to others: a row statistic that comes back to its own
array costs nothing, a bias that meets another value is an edge.

Second pass (`finish.py`): groups become values, their dim classes factors.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lts.graph import NodeKind
from lts.tracing.decide import rule_for, unsupported
from lts.tracing.flatten import Equation, FlatProgram, Path, Tensor
from lts.tracing.follow import (
    ELEMENTWISE,
    FOLLOW,
    Follow,
    blocked_dims,
    is_reduction,
    units_of,
)
from lts.tracing.groups import Groups
from lts.tracing.manual import shard_map_rule
from lts.tracing.op_rule import OpRule, Rule

DimMap = tuple[int | None, ...]
"""Per dim of one array, the dim of another that is the same index, or None."""


@dataclass(kw_only=True)
class Argument:
    """An argument of the program: its path, what it is, which dims are the batch."""

    path: str
    kind: NodeKind
    batch_dims: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Crossing:
    """An array that meets another value: it is resharded to the layout found there."""

    source: Tensor
    target: Tensor
    dims: DimMap  # per dim of the source, the dim of the target
    trips: int
    broadcast: Path | None = None  # equation that widens the source on its way


@dataclass(kw_only=True)
class Decision:
    """A decision op, before its factors are named."""

    equation: Equation
    rule: OpRule
    name: str


@dataclass(kw_only=True)
class Draft:
    """What the first pass finds."""

    program: FlatProgram
    arguments: Sequence[Argument]
    result_paths: Sequence[str]
    groups: Groups = field(default_factory=Groups)
    decisions: list[Decision] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    follows: list[Equation] = field(default_factory=list)
    reductions: list[tuple[Equation, tuple[int, ...]]] = field(default_factory=list)
    updates: list[Equation] = field(default_factory=list)
    absorbed: set[int] = field(default_factory=set)  # broadcasts that never settled
    replicated_bytes: float = 0.0
    notes: list[str] = field(default_factory=list)


class _Builder:
    def __init__(self, draft: Draft, on_unknown: str) -> None:
        self.draft = draft
        self.groups = draft.groups
        self.on_unknown = on_unknown
        # Source, map per dim of the pending array, equation that broadcast it first.
        self.pending: dict[int, tuple[Tensor, DimMap, Path]] = {}
        self.names: dict[str, int] = {}
        self.weights: set[int] = set()  # tensors that are made of parameters alone

    def read(self) -> None:
        """The first pass, over all equations."""
        for tensor, argument in zip(
            self.draft.program.arguments, self.draft.arguments, strict=True
        ):
            self.groups.add(tensor)
            if argument.kind is NodeKind.PARAMETER:
                self.weights.add(tensor.index)
        for eq in self.draft.program.equations:
            if all(tensor.is_local for tensor in (*eq.ins, *eq.outs)):
                # Follow operations on local arrays melt into the kernel that reads.
                if eq.primitive not in FOLLOW and eq.primitive != "iota":
                    arrays = (*eq.ins, *eq.outs)
                    nbytes = sum(t.itemsize * math.prod(t.shape) for t in arrays)
                    self.draft.replicated_bytes += nbytes * eq.trips
                continue
            for out in eq.outs:
                self.groups.add(out)
            if all(t.is_local or t.index in self.weights for t in eq.ins):
                self.weights.update(out.index for out in eq.outs)
            rule = decision_rule(eq)  # first: a registered rule goes before ours
            if rule is not None:
                self.decide(eq, rule(eq))
            elif eq.primitive in ELEMENTWISE:
                self.elementwise(eq)
            elif eq.primitive == "broadcast_in_dim":
                self.broadcast(eq)
            elif eq.primitive == "dynamic_update_slice":
                self.update(eq)
            elif eq.primitive in FOLLOW:
                self.follow(eq)
            elif self.on_unknown == "replicate":
                self.decide(eq, _replicated(eq))
                note = f"{eq.primitive} at {eq.source}: no rule, replicated"
                self.draft.notes.append(note)
            else:
                raise unsupported(eq)
        for result in self.draft.program.results:
            self.settle(result, 1)
        self.draft.absorbed = set(self.pending)

    def settle(self, tensor: Tensor, trips: int) -> None:
        """Make a pending broadcast an array of its own, with an edge from it."""
        if tensor.is_local:
            return
        self.groups.add(tensor)
        if tensor.index in self.pending:
            source, dims, path = self.pending.pop(tensor.index)
            self.cross(source, tensor, dims, trips, path)

    def cross(
        self,
        source: Tensor,
        target: Tensor,
        dims: DimMap,
        trips: int,
        broadcast: Path | None = None,
    ) -> None:
        """Record that `source` meets `target`; `dims`: per dim of the target."""
        back: list[int | None] = [None] * len(source.shape)
        for j, i in enumerate(dims):
            if i is not None:
                back[i] = j
        self.draft.crossings.append(
            Crossing(
                source=source,
                target=target,
                dims=tuple(back),
                trips=trips,
                broadcast=broadcast,
            )
        )

    def elementwise(self, eq: Equation) -> None:
        """Full operands share the result's group; pending ones meet it."""
        self.draft.follows.append(eq)
        for number, out in enumerate(eq.outs):
            several = len(eq.outs) > 1  # optimization_barrier: out i is operand i
            operands = eq.ins[number : number + 1] if several else eq.ins
            shaped = [
                t for t in operands if not t.is_local and len(t.shape) == len(out.shape)
            ]
            full = [
                t
                for t in shaped
                if t.shape == out.shape and t.index not in self.pending
            ]
            waiting = [t for t in shaped if t not in full]
            if not full and len(waiting) == 1 and waiting[0].index in self.pending:
                self.pending[out.index] = self.pending[waiting[0].index]
                continue
            identity = tuple(range(len(out.shape)))
            for tensor in full:
                pairs = zip(identity, identity, strict=True)
                if not self.groups.unify(tensor, out, pairs):
                    self.cross(tensor, out, identity, eq.trips)
            for tensor in waiting:
                self.meet(*self.origin(tensor, out), out, eq.trips)

    def origin(self, tensor: Tensor, out: Tensor) -> tuple[Tensor, DimMap, Path | None]:
        """Where a smaller operand comes from; per dim of `out`, the dim there."""
        dims = [
            i if n == m else None
            for i, (n, m) in enumerate(zip(tensor.shape, out.shape, strict=True))
        ]
        if tensor.index not in self.pending:
            return tensor, tuple(dims), None
        source, inner, path = self.pending[tensor.index]
        return source, tuple(None if i is None else inner[i] for i in dims), path

    def meet(
        self,
        source: Tensor,
        dims: DimMap,
        broadcast: Path | None,
        out: Tensor,
        trips: int,
    ) -> None:
        """A broadcast array joins `out`: free if it came from the same value."""
        same_group = self.groups.group(source) == self.groups.group(out)
        same_dims = all(
            self.groups.dim(source, i) == self.groups.dim(out, j)
            for j, i in enumerate(dims)
            if i is not None and source.shape[i] > 1
        )
        if same_group and same_dims:
            return
        if out.index in self.weights:  # a weight and its scales have one layout
            pairs = [(i, j) for j, i in enumerate(dims) if i is not None]
            if self.groups.unify(source, out, pairs):
                return
        self.cross(source, out, dims, trips, broadcast)

    def broadcast(self, eq: Equation) -> None:
        """The result is pending, unless it is no larger than the operand."""
        (operand, *_), out = eq.ins, eq.outs[0]
        if operand.is_local:
            return
        (pairs,) = FOLLOW[eq.primitive](eq).pairs
        dims: list[int | None] = [None] * len(out.shape)
        for i, j in pairs:
            dims[j] = i
        source, path = operand, eq.path
        if operand.index in self.pending:
            source, inner, path = self.pending[operand.index]
            dims = [None if i is None else inner[i] for i in dims]
        elif math.prod(operand.shape) == math.prod(out.shape):
            self.groups.unify(operand, out, pairs)
            return
        self.pending[out.index] = (source, tuple(dims), path)

    def follow(self, eq: Equation) -> None:
        """Layout operations, reductions: the result joins its operands' group."""
        rule: Follow = FOLLOW[eq.primitive](eq)
        for operand in eq.ins:
            self.settle(operand, eq.trips)
        self.draft.follows.append(eq)
        if is_reduction(eq.primitive):
            self.draft.reductions.append((eq, rule.reduced))
        for out in eq.outs:
            self.groups.block(out, rule.blocked_out)
            for number, operand in enumerate(eq.ins):
                pairs = rule.pairs[number] if number < len(rule.pairs) else ()
                if operand.is_local:
                    continue
                self.groups.block(operand, blocked_dims(rule, number))
                if not pairs:
                    continue
                if rule.cuts or not self.groups.unify(operand, out, pairs):
                    dims: list[int | None] = [None] * len(out.shape)
                    for i, j in pairs:
                        dims[j] = i
                    self.cross(operand, out, tuple(dims), eq.trips)
                    continue
                for i, _ in pairs:
                    units = units_of(rule, i)
                    if units is not None and number == 0:
                        self.groups.limit_units(operand, i, units)

    def update(self, eq: Equation) -> None:
        """A cache update: the result is the operand; what is written meets it.

        Dims that the update covers in part need no collective when sharded (every
        device writes what falls on it), so the update must be whole along them.
        """
        operand, update, out = eq.ins[0], eq.ins[1], eq.outs[0]
        self.settle(operand, eq.trips)
        self.settle(update, eq.trips)
        identity = tuple(range(len(out.shape)))
        if not operand.is_local:
            pairs = zip(identity, identity, strict=True)
            if not self.groups.unify(operand, out, pairs):
                self.cross(operand, out, identity, eq.trips)
        if update.is_local:
            return
        dims = tuple(
            i if n == m else None
            for i, (n, m) in enumerate(zip(update.shape, out.shape, strict=True))
        )
        self.draft.updates.append(eq)
        self.cross(update, out, dims, eq.trips)

    def decide(self, eq: Equation, rule: OpRule) -> None:
        """A decision op; its name is its scope, else its source line."""
        for operand in eq.ins:
            self.settle(operand, eq.trips)
        for i, j in rule.ties:
            dims = range(len(eq.ins[i].shape))
            self.groups.unify(eq.ins[j], eq.ins[i], zip(dims, dims, strict=True))
        if rule.note and rule.note not in self.draft.notes:
            self.draft.notes.append(rule.note)
        base = eq.name or f"{eq.source or 'op'} {eq.primitive}"
        count = self.names[base] = self.names.get(base, 0) + 1
        name = base if count == 1 else f"{base}#{count}"
        self.draft.decisions.append(Decision(equation=eq, rule=rule, name=name))


def decision_rule(eq: Equation) -> Rule | None:
    """The rule of an equation that is a decision op, else None."""
    if eq.primitive == "shard_map":
        return functools.partial(shard_map_rule, flops=flops_of)
    return rule_for(eq)


def flops_of(eq: Equation) -> float:
    """Arithmetic of one execution of an equation; elementwise work counts none."""
    rule = decision_rule(eq)
    return 0.0 if rule is None else rule(eq).flops


def _replicated(eq: Equation) -> OpRule:
    rule = OpRule()
    rule.operands = [[rule.add(n, blocked=True) for n in t.shape] for t in eq.ins]
    rule.results = [[rule.add(n, blocked=True) for n in t.shape] for t in eq.outs]
    return rule


def draft_of(
    program: FlatProgram,
    arguments: Sequence[Argument],
    result_paths: Sequence[str],
    on_unknown: str,
) -> Draft:
    """The first pass: groups, decisions and crossings of a flat program."""
    draft = Draft(
        program=program,
        arguments=arguments,
        result_paths=result_paths,
        notes=list(program.notes),
    )
    _Builder(draft, on_unknown).read()
    return draft


def members(draft: Draft) -> Mapping[int, list[Tensor]]:
    """Tensors of every group, by its representative."""
    found: dict[int, dict[int, Tensor]] = {}

    def note(tensor: Tensor) -> None:
        if not tensor.is_local and tensor.index not in draft.absorbed:
            root = draft.groups.group(tensor)
            found.setdefault(root, {})[tensor.index] = tensor

    for argument in draft.program.arguments:
        note(argument)
    for eq in draft.program.equations:
        for tensor in (*eq.ins, *eq.outs):
            if not tensor.is_local:
                draft.groups.add(tensor)
            note(tensor)
    return {root: list(tensors.values()) for root, tensors in found.items()}
