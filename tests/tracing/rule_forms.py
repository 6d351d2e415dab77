"""One normal form for our sharding rules and Shardy's, and their differences.

A *place* is a dim of an operand or result: (array, dim), operands first. A form says
which places are the same factor, and of what kind each place is:

- `pass`: it may be sharded, and moves nothing;
- `reduction`: it may be sharded, and leaves partial sums;
- `exchange`: it may be sharded, and shards exchange elements (Shardy's permutation);
- `whole`: it must not be sharded.

Dims of extent 1 are left out.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from lts.shardy import Shardy, ShardyOp, ShardyRule
from lts.tracing import trace
from lts.tracing.decide import rule_for
from lts.tracing.follow import FOLLOW, Follow
from lts.tracing.op_rule import OpRule
from tests.tracing.primitive_cases import TracedCase

Place = tuple[int, int]
Link = tuple[Place, Place]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A rule in normal form.

    Attributes:
      kinds: kind of every place that the rule speaks of.
      links: pairs of places, the earlier first, that one sharding covers.
      ways: per place, in how many ways it can be sharded where that is less than its
        extent (a reshape splits the dim).
      minor: pairs that share a factor which is not the first one of a dim.
      moved_bytes: per place judged by propagation, the most bytes of one collective.
      has_exchange: whether shards exchange elements along some factor.
      how: "rule" of one operation, or "propagation" through several.
    """

    kinds: Mapping[Place, str]
    links: frozenset[Link]
    ways: Mapping[Place, int]
    minor: frozenset[Link] = frozenset()
    moved_bytes: Mapping[Place, int] = field(default_factory=dict)
    has_exchange: bool = False
    how: str = "rule"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One place or pair on which the forms differ.

    Attributes:
      looser: whether ours allows what Shardy does not.
      places: a place, or two that are linked in one form only.
      ours, theirs: kind of the place, number of ways, or `linked` / `apart`.
    """

    looser: bool
    places: tuple[Place, ...]
    ours: str
    theirs: str

    def __str__(self) -> str:
        places = " and ".join(f"array {array} dim {dim}" for array, dim in self.places)
        return f"{places}: {self.ours} here, {self.theirs} in Shardy"


def _pairs(places: Iterable[Place]) -> Iterator[Link]:
    yield from itertools.combinations(sorted(places), 2)


def extents_of(traced: TracedCase) -> dict[Place, int]:
    """Extent of every place of a case, those of extent 1 left out."""
    eq = traced.equation
    arrays = [*(eq.ins[i] for i in traced.arguments), *eq.outs]
    return {
        (array, dim): extent
        for array, tensor in enumerate(arrays)
        for dim, extent in enumerate(tensor.shape)
        if extent != 1
    }


def our_form(traced: TracedCase) -> Form | None:
    """The form of our rule; None for a primitive without one."""
    primitive = traced.equation.primitive
    if (rule := rule_for(traced.equation)) is not None:
        return _form_of_decision(traced, rule(traced.equation))
    if primitive == "dynamic_update_slice":
        return _form_of_update(traced)
    if primitive in FOLLOW:
        return _form_of_follow(traced, FOLLOW[primitive](traced.equation))
    return None


def _form_of_decision(traced: TracedCase, rule: OpRule) -> Form:
    operands = [rule.operands[i] for i in traced.arguments]
    extents, reductions = extents_of(traced), rule.reductions()
    places: dict[int, list[Place]] = {}
    kinds, ways = {}, {}
    for array, dims in enumerate([*operands, *rule.results]):
        for dim, factor in enumerate(dims):
            if (place := (array, dim)) not in extents:
                continue
            if factor is None or factor in rule.blocked:
                kinds[place] = "whole"
                continue
            kinds[place] = "reduction" if factor in reductions else "pass"
            if rule.sizes[factor] < extents[place]:
                ways[place] = rule.sizes[factor]
            places.setdefault(factor, []).append(place)
    links = frozenset(link for group in places.values() for link in _pairs(group))
    return Form(kinds=kinds, links=links, ways=ways)


def _form_of_update(traced: TracedCase) -> Form:
    """A cache update, which the tracer treats itself: read off the graph.

    Operand and result are leaves of one value, which an edge from the update meets.
    """
    graph = trace(traced.function, *traced.args)
    leaves = {leaf.path: leaf for node in graph.nodes for leaf in node.leaves}
    (edge,) = graph.edges
    met = dict(zip(edge.source_factors, edge.target_factors, strict=True))
    factors = {
        0: leaves["0"].factors,
        1: [None if f is None else met[f] for f in leaves["1"].factors],
        len(traced.args): leaves["out"].factors,
    }
    places: dict[int, list[Place]] = {}
    kinds = {}
    for array, dim in extents_of(traced):
        factor = factors[array][dim]
        kinds[array, dim] = "whole" if factor is None else "pass"
        if factor is not None:
            places.setdefault(factor, []).append((array, dim))
    links = frozenset(link for group in places.values() for link in _pairs(group))
    return Form(kinds=kinds, links=links, ways={})


def _form_of_follow(traced: TracedCase, rule: Follow) -> Form:
    extents, num_ins = extents_of(traced), len(traced.arguments)
    outs = range(num_ins, num_ins + len(traced.equation.outs))
    kinds = dict.fromkeys(extents, "pass")
    group = {place: place for place in extents}
    linked, blocked = set[Place](), set[Place]()
    for array, number in enumerate(traced.arguments):
        for i, j in rule.pairs[number] if number < len(rule.pairs) else ():
            for out in outs:
                one, other = (array, i), (out, j)
                if one in group and other in group:
                    old, new = group[one], group[other]
                    group = {p: new if g == old else g for p, g in group.items()}
                    linked |= {one, other}
        dims = rule.blocked_in[number] if number < len(rule.blocked_in) else ()
        blocked |= {(array, dim) for dim in dims}
    blocked |= {(out, dim) for out in outs for dim in rule.blocked_out}
    blocked_groups = {group[place] for place in blocked if place in group}
    for place in extents:
        is_operand = place[0] < num_ins
        if group[place] in blocked_groups:
            kinds[place] = "whole"
        elif is_operand and place[1] in rule.reduced:
            kinds[place] = "reduction"
        elif is_operand and place not in linked:
            kinds[place] = "whole"
    free = [place for place in extents if kinds[place] == "pass"]
    by_group: dict[Place, list[Place]] = {}
    for place in free:
        by_group.setdefault(group[place], []).append(place)
    units = {(0, dim): ways for dim, ways in rule.units}
    ways = {
        place: units[member]
        for places in by_group.values()
        for member in places
        if member in units
        for place in places
        if units[member] != extents[place]
    }
    reduced: dict[int, list[Place]] = {}
    for place in extents:
        if kinds[place] == "reduction":
            reduced.setdefault(place[1], []).append(place)
    links = frozenset(
        link
        for places in (*by_group.values(), *reduced.values())
        for link in _pairs(places)
    )
    return Form(kinds=kinds, links=links, ways=ways)


def only_op(ops: Sequence[ShardyOp], traced: TracedCase) -> ShardyOp | None:
    """The one operation of a program that is not a constant, if it gives all results.

    Its operands must be the arguments, once each, and constants.
    """
    arguments = set(range(len(traced.arguments)))
    body = [op for op in ops if op.depth == 0]
    acting = [op for op in body if not _is_constant(op, body) and op.results]
    returns = [op for op in body if op.name == "func.return"]
    if len(acting) != 1 or len(returns) != 1:
        return None
    taken = [value for value in acting[0].operands if value in arguments]
    whole = sorted(taken) == sorted(arguments) and (
        returns[0].operands == acting[0].results
    )
    return acting[0] if whole else None


def _is_constant(op: ShardyOp, body: Sequence[ShardyOp]) -> bool:
    """Whether an operation reads no argument, nor what was made of one."""
    makers = {value: maker for maker in body for value in maker.results}
    return bool(op.results) and all(
        value in makers and _is_constant(makers[value], body) for value in op.operands
    )


def shardy_form(shardy: Shardy, traced: TracedCase) -> Form:
    """The form of Shardy's rule of the one operation, else of its propagation."""
    ops = shardy.factor_rules(traced.text)
    op = only_op(ops, traced)
    if op is not None and op.rule is not None:
        return _form_of_rule(op, op.rule, traced)
    return replace(
        _form_by_propagation(shardy, traced), has_exchange=_has_exchange(ops)
    )


def _has_exchange(ops: Sequence[ShardyOp]) -> bool:
    """Whether any operation has a factor along which shards exchange elements."""
    rules = [op.rule for op in ops if op.rule is not None]
    return any(rule.sizes[f] > 1 for rule in rules for f in rule.permutation)


def _form_of_rule(op: ShardyOp, rule: ShardyRule, traced: TracedCase) -> Form:
    extents = extents_of(traced)
    special = {
        **dict.fromkeys(rule.reduction, "reduction"),
        **dict.fromkeys(rule.need_replication, "whole"),
        **dict.fromkeys(rule.permutation, "exchange"),
    }
    order = [op.operands.index(number) for number in range(len(traced.arguments))]
    arrays = [*(rule.operands[i] for i in order), *rule.results]
    kinds, ways = {}, {}
    major: dict[int, list[Place]] = {}
    every: dict[int, list[Place]] = {}
    for place, extent in extents.items():
        factors = [f for f in arrays[place[0]][place[1]] if rule.sizes[f] > 1]
        if not factors:  # a factor of its own that Shardy never shards
            kinds[place] = "whole"
            continue
        kinds[place] = special.get(factors[0], "pass")
        if rule.sizes[factors[0]] < extent:
            ways[place] = rule.sizes[factors[0]]
        major.setdefault(factors[0], []).append(place)
        for factor in factors:
            every.setdefault(factor, []).append(place)
    links = {link for group in major.values() for link in _pairs(group)}
    all_links = {link for group in every.values() for link in _pairs(group)}
    return Form(
        kinds=kinds,
        links=frozenset(links),
        ways=ways,
        minor=frozenset(all_links - links),
        has_exchange=_has_exchange([op]),
    )


def prime_factor(extent: int) -> int:
    """The smallest one, so that a mesh axis of this size divides the extent."""
    return next(n for n in range(2, extent + 1) if extent % n == 0)


def _form_by_propagation(shardy: Shardy, traced: TracedCase) -> Form:
    """Shard one operand dim at a time and see what becomes of it."""
    extents, num_ins = extents_of(traced), len(traced.args)
    # A random key is a row of integers in StableHLO.
    ranks = [
        len(arg.shape) + jnp.issubdtype(arg.dtype, jax.dtypes.extended)
        for arg in traced.args
    ]
    kinds, moved_bytes, links = {}, {}, set[Link]()
    for place, extent in extents.items():
        if place[0] >= num_ins or extent == 0:
            continue
        specs = [[[]] * rank for rank in ranks]
        specs[place[0]] = [
            ["x"] if place[1] == d else [] for d in range(ranks[place[0]])
        ]
        found = shardy.propagated(traced.text, {"x": prime_factor(extent)}, specs)
        arrays = [*found.arguments, *found.results]
        sharded = [
            (array, dim)
            for array, dims in enumerate(arrays)
            for dim, axes in enumerate(dims)
            if axes and (array, dim) in extents
        ]
        moving = [c for c in found.collectives if c.kind != "all_slice"]
        moved_bytes[place] = max((c.nbytes for c in moving), default=0)
        moved = {c.kind for c in moving}
        if moved - {"all_reduce", "reduce_scatter"}:
            kinds[place] = "whole"
        elif moved:
            kinds[place] = "reduction"
        else:
            passes = any(array >= num_ins for array, _ in sharded)
            kinds[place] = "pass" if passes else "whole"
        if kinds[place] != "whole":
            links.update(_pairs(sharded))
    return Form(
        kinds=kinds,
        links=frozenset(links),
        ways={},
        moved_bytes=moved_bytes,
        how="propagation",
    )


def differences(ours: Form, theirs: Form) -> list[Difference]:
    """Where two forms differ; places that one of them does not speak of are skipped."""
    order = {"whole": 0, "exchange": 1, "reduction": 1, "pass": 2}
    found = []
    for place in sorted(ours.kinds.keys() & theirs.kinds.keys()):
        mine, yours = ours.kinds[place], theirs.kinds[place]
        if mine != yours:
            looser = order[mine] > order[yours] or (mine, yours) == (
                "reduction",
                "exchange",
            )
            found.append(
                Difference(looser=looser, places=(place,), ours=mine, theirs=yours)
            )
    for link in sorted(ours.links ^ theirs.links):
        if any("whole" in (ours.kinds.get(p), theirs.kinds.get(p)) for p in link):
            continue  # said above
        mine, yours = link in ours.links, link in theirs.links
        words = {True: "linked", False: "apart"}
        found.append(
            Difference(looser=mine, places=link, ours=words[mine], theirs=words[yours])
        )
    if theirs.how == "rule":
        for place in sorted(ours.kinds.keys() & theirs.kinds.keys()):
            mine, yours = ours.ways.get(place), theirs.ways.get(place)
            if mine != yours and ours.kinds[place] == theirs.kinds[place] == "pass":
                looser = yours is not None and (mine is None or yours % mine != 0)
                found.append(
                    Difference(
                        looser=looser,
                        places=(place,),
                        ours=f"{mine or 'all'} ways",
                        theirs=f"{yours or 'all'} ways",
                    )
                )
    return found
