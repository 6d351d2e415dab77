"""Which configuration is better: pairs in order, regret of the choice, rules beside it.

All of throughput per GPU. A rule that knows nothing of the model stands beside each
figure: raw order inside a group says only that more hardware is faster.

- A: at maximum load, the rows of one comparison key.
- B: closed loops of one server type at equal load per GPU (`C / n`), as replicas that
  fill a fixed number of GPUs would see.
- C: the best (configuration, load) of a server type under a limit on TPOT.
- Equal size: configurations of one key and as many GPUs, per metric.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from experiments.e2e.points import Priced
from experiments.e2e.rows import Row

APART = 0.10
"""Relative difference from which a pair counts."""
TPOT_LIMITS_S = (0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1)
WITHIN, KEPT, BROKEN = 0.05, 0.05, 0.10
"""Of C: how near the best counts, how far above the limit is kept, and broken."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One configuration in a group: measured and predicted worth (higher is better)."""

    num_gpus: int
    measured: float
    predicted: float
    experts: bool
    row: Row


@dataclass
class Score:
    """Pairs in order, and regrets of choices, of predictions and of rules."""

    right: int = 0
    pairs: int = 0
    expert_right: int = 0
    expert_pairs: int = 0
    fewest_right: int = 0
    most_right: int = 0
    regret: list[float] = field(default_factory=list)
    fewest_regret: list[float] = field(default_factory=list)
    most_regret: list[float] = field(default_factory=list)

    def add(self, group: Sequence[Choice]) -> None:
        """Count a group; one of fewer than two configurations says nothing."""
        if len(group) < 2:
            return
        for one, two in combinations(group, 2):
            high, low = (one, two) if one.measured > two.measured else (two, one)
            if high.measured <= low.measured * (1 + APART):
                continue
            self.pairs += 1
            right = high.predicted > low.predicted
            self.right += right
            if one.experts:
                self.expert_pairs += 1
                self.expert_right += right
            self.fewest_right += high.num_gpus < low.num_gpus
            self.most_right += high.num_gpus > low.num_gpus
        best = max(choice.measured for choice in group)
        chosen = max(group, key=lambda c: c.predicted)
        self.regret.append(best / chosen.measured - 1)
        sizes = [c.num_gpus for c in group]
        for wanted, regrets in (
            (min(sizes), self.fewest_regret),
            (max(sizes), self.most_regret),
        ):
            picked = [c.measured for c in group if c.num_gpus == wanted]
            regrets.append(best / float(np.mean(picked)) - 1)

    def summary(self) -> dict[str, float]:
        """Shares and quantiles for a table."""
        if not self.pairs:
            return {"pairs": 0}
        return {
            "pairs": self.pairs,
            "right": self.right / self.pairs,
            "fewest_gpus": self.fewest_right / self.pairs,
            "most_gpus": self.most_right / self.pairs,
            "expert_pairs": self.expert_pairs,
            "expert_right": self.expert_right,
            "groups": len(self.regret),
            **_quantiles("regret", self.regret),
            **_quantiles("fewest_regret", self.fewest_regret),
            **_quantiles("most_regret", self.most_regret),
        }


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_median": float(np.median(values)),
        f"{name}_p90": float(np.quantile(values, 0.9)),
    }


def maximum_load(
    priced: Priced, values: np.ndarray, use: np.ndarray | None = None
) -> Score:
    """Comparison A; of rows in `use` (bool) only, None for all."""
    chosen = np.ones(len(values), bool) if use is None else use
    groups: dict[str, list[Choice]] = defaultdict(list)
    for row, deployment, value, used in zip(
        priced.rows, priced.deployments, values, chosen, strict=True
    ):
        if used and row.load == "max" and row.group:
            groups[row.group].append(
                Choice(
                    num_gpus=row.num_gpus,
                    measured=row.value / row.num_gpus,
                    predicted=value / row.num_gpus,
                    experts=deployment.model.num_expert_layers > 0,
                    row=row,
                )
            )
    score = Score()
    for group in groups.values():
        score.add(group)
    return score


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Both latencies of a closed loop, `(measured, predicted)` each."""

    row: Row
    experts: bool
    requests: float
    tpot_s: tuple[float, float]
    ttft_s: tuple[float, float]

    @property
    def per_gpu(self) -> tuple[float, float]:
        """Generated tokens per second and GPU, `(measured, predicted)`."""
        written, gpus = self.row.output_len or 1.0, self.row.num_gpus
        measured, predicted = (
            self.requests * written / (ttft + (written - 1) * tpot) / gpus
            for ttft, tpot in zip(self.ttft_s, self.tpot_s, strict=True)
        )
        return measured, predicted


def loops(priced: Priced, values: np.ndarray) -> Iterator[Loop]:
    """Closed loops of which time to first token and per token were measured."""
    found: dict[tuple, dict[str, tuple[Row, float, float, bool]]] = defaultdict(dict)
    for row, deployment, value in zip(
        priced.rows, priced.deployments, values, strict=True
    ):
        if row.load != "closed" or row.metric not in ("tpot_mean", "ttft_mean"):
            continue
        key = (
            *_server(row),
            row.requests,
            row.num_gpus,
            row.tp,
            row.pp,
            row.dp,
            row.ep,
        )
        experts = deployment.model.num_expert_layers > 0
        entry = (row, row.value, float(value), experts)
        found[key].setdefault(row.metric, entry)
    for own in found.values():
        if len(own) == 2:
            row, tpot, predicted, experts = own["tpot_mean"]
            _, ttft, predicted_ttft, _ = own["ttft_mean"]
            yield Loop(
                row=row,
                experts=experts,
                requests=row.requests or 1.0,
                tpot_s=(tpot, predicted),
                ttft_s=(ttft, predicted_ttft),
            )


def _server(row: Row) -> tuple:
    """What rows of one server type share: all but degrees and load."""
    return (
        row.profile,
        row.model,
        row.gpu,
        row.precision,
        row.input_len,
        row.output_len,
    )


def equal_load(priced: Priced, values: np.ndarray, what: str = "per_gpu") -> Score:
    """Comparison B; `what`: `per_gpu`, or `ttft_s` of loops that do not queue."""
    groups: dict[tuple, list[Choice]] = defaultdict(list)
    for loop in loops(priced, values):
        if what == "ttft_s":
            if loop.ttft_s[0] > 5.0:
                continue
            measured, predicted = (1 / value for value in loop.ttft_s)
        else:
            measured, predicted = loop.per_gpu
        load = loop.requests / loop.row.num_gpus
        groups[(*_server(loop.row), load)].append(
            Choice(
                num_gpus=loop.row.num_gpus,
                measured=measured,
                predicted=predicted,
                experts=loop.experts,
                row=loop.row,
            )
        )
    score = Score()
    for group in groups.values():
        score.add(group)
    return score


def under_limit(priced: Priced, values: np.ndarray) -> dict[str, float]:
    """Comparison C: shares of cases; `any_within` is a choice at random among the
    points that keep the limit."""
    sets: dict[tuple, list[Loop]] = defaultdict(list)
    for loop in loops(priced, values):
        sets[_server(loop.row)].append(loop)
    cases = within = broken = 0
    at_random = 0.0
    for own in sets.values():
        if len({(x.row.tp, x.row.pp, x.row.dp, x.row.ep) for x in own}) < 2:
            continue
        for limit in TPOT_LIMITS_S:
            keeping = [x for x in own if x.tpot_s[0] <= limit]
            if not keeping:
                continue
            cases += 1
            best = max(x.per_gpu[0] for x in keeping)
            near = [x.per_gpu[0] >= best / (1 + WITHIN) for x in keeping]
            at_random += float(np.mean(near))
            allowed = [x for x in own if x.tpot_s[1] <= limit]
            if not allowed:
                continue
            chosen = max(allowed, key=lambda x: x.per_gpu[1])
            kept = chosen.tpot_s[0] <= limit * (1 + KEPT)
            within += kept and chosen.per_gpu[0] >= best / (1 + WITHIN)
            broken += chosen.tpot_s[0] > limit * (1 + BROKEN)
    if not cases:
        return {"cases": 0}
    return {
        "cases": cases,
        "within": within / cases,
        "broken": broken / cases,
        "any_within": at_random / cases,
    }


@dataclass
class Count:
    """Pairs ordered right, of all that are far enough apart.

    `wider_right`: by the rule that more ways of tensor parallelism are better (half a
    pair where both have as many).
    """

    right: int = 0
    pairs: int = 0
    wider_right: float = 0.0


def equal_size(
    priced: Priced, values: np.ndarray
) -> dict[tuple[str, str, bool], Count]:
    """Pairs more than 10% apart by (kind, source, low confidence), over all metrics.

    Kinds: `PP`, `CP`, `DP` (tensor against data parallel, experts as they are) and `EP`
    (the same attention layout).
    """
    groups: dict[tuple, list[tuple[Row, float]]] = defaultdict(list)
    for row, value in zip(priced.rows, values, strict=True):
        if row.group and _is_comparable(row):
            groups[row.group, row.metric, row.num_gpus].append((row, float(value)))
    counts: dict[tuple[str, str, bool], Count] = defaultdict(Count)
    for own in groups.values():
        for (one, first), (two, second) in combinations(own, 2):
            kind = _kind(one, two)
            low, high = sorted((one.value, two.value))
            if kind is None or high <= low * (1 + APART):
                continue
            doubtful = one.low_confidence or two.low_confidence
            count = counts[kind, one.kind, doubtful]
            count.pairs += 1
            count.right += (one.value > two.value) == (first > second)
            higher_is_better = one.quantity == "tokens_per_s"
            better, worse = (
                (one, two)
                if (one.value > two.value) == higher_is_better
                else (two, one)
            )
            count.wider_right += (better.tp > worse.tp) + 0.5 * (better.tp == worse.tp)
    return dict(counts)


def _is_comparable(row: Row) -> bool:
    """Whether a row shows speed: no waits in queues, and no cells that the file's own
    notes call starved of cache (of these, the time per token of few that run)."""
    if "more requests than KV room" in row.notes:
        return False
    starved = "starved" in row.notes
    return row.quantity == "tpot_s" or not (
        starved or (row.queueing and row.quantity == "ttft_s")
    )


def _kind(one: Row, two: Row) -> str | None:
    if one.pp != two.pp:
        return "PP"
    if ("dcp=" in one.notes) != ("dcp=" in two.notes) or (
        ("prefill CP" in one.label) != ("prefill CP" in two.label)
    ):
        return "CP"
    if one.tp != two.tp or one.dp != two.dp:
        return "DP"
    return "EP" if one.ep != two.ep else None
