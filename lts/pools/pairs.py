"""Which instances of prefill and of decode serve a cluster best together.

Phases are searched apart, for all sizes of their instances. Here the best candidates of
all sizes meet: caches are handed over between every two, so TTFT is known, and the pair
and the counts that serve most requests are taken.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lts.cost.instances import best_split
from lts.cost.serving import Outcome, Priced, outcome_of, served_tokens
from lts.cost.transfer import cache_bytes, link_between, receiver_of, transfer_s
from lts.evaluate.bound import relaxed_outcome
from lts.prepare import Prepared
from lts.workload import Workload

Candidates = Mapping[str, np.ndarray]
"""Per phase, host int32 `[genes, candidates]`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool:
    """The instances of one phase.

    Attributes:
      picks: of every instance; host `[genes]`.
      outcome: of one instance, host scalars.
      instances: how many there are.
      requests_per_s: that all of them can serve.
    """

    picks: np.ndarray
    outcome: Outcome
    instances: int
    requests_per_s: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Pools:
    """The pools of a cluster, by phase, and the requests/s that they serve together.

    `kv_transfer_s` is what the caches of one prefill call take; None without decode.
    """

    pools: Mapping[str, Pool]
    requests_per_s: float
    kv_transfer_s: float | None


@dataclass(frozen=True, eq=False, kw_only=True)
class _Met:
    """Candidates of one phase, in columns: each with its partner, or its number.

    `numbers` say which candidate a column is of; `per_s` are requests/s of one
    instance, 0 where a limit is missed.
    """

    numbers: np.ndarray
    outcome: Outcome
    per_s: np.ndarray


def best_pools(
    prepared: Mapping[str, Prepared], candidates: Candidates, workload: Workload
) -> Pools | None:
    """The pair of candidates and the counts that serve most; None if none can."""
    prefill = prepared["prefill"]
    num_gpus = prefill.evaluator.tables.cluster.num_gpus
    if "decode" not in prepared:
        return _alone(prefill, candidates["prefill"], workload)
    gpus = {p: _num_gpus(prepared[p], candidates[p]) for p in prepared}
    handed_s = _transfers(prepared, candidates)
    reading = _reading(prefill, candidates["prefill"], handed_s, workload)
    writing, column = _writing(prepared["decode"], candidates["decode"], workload)
    split = best_split(
        reading.per_s.reshape(handed_s.shape[:2]),
        np.where(column >= 0, writing.per_s[column], 0.0),
        gpus["prefill"].tolist(),
        gpus["decode"].tolist(),
        num_gpus,
    )
    if split is None:
        return None
    place = split.prefill * handed_s.shape[1] + split.decode
    counts = {"prefill": split.prefill_instances, "decode": split.decode_instances}
    columns = {
        "prefill": (reading, place),
        "decode": (writing, int(column[split.decode, split.decode_instances - 1])),
    }
    pools = {
        phase: _pool(met, at, candidates[phase], counts[phase])
        for phase, (met, at) in columns.items()
    }
    batch = int(pools["prefill"].outcome.places[0])
    return Pools(
        pools=pools,
        requests_per_s=split.requests_per_s,
        kv_transfer_s=float(handed_s[split.prefill, split.decode, batch]),
    )


def least_ttft(
    prepared: Mapping[str, Prepared], candidates: Candidates, workload: Workload
) -> tuple[float, float]:
    """Least TTFT of two candidates that have room together; its KV transfer.

    Both in seconds; infinite if no two have room.
    """
    gpus = {p: _num_gpus(prepared[p], candidates[p]) for p in prepared}
    num_gpus = prepared["prefill"].evaluator.tables.cluster.num_gpus
    handed_s = _transfers(prepared, candidates)
    reading = _reading(prepared["prefill"], candidates["prefill"], handed_s, workload)
    room = gpus["prefill"][:, None] + gpus["decode"] <= num_gpus
    ttft_s = np.where(room.ravel(), reading.outcome.ttft_s, np.inf)
    column = int(np.argmin(ttft_s))
    batch = int(reading.outcome.places[0][column])
    rows = handed_s.reshape(-1, handed_s.shape[-1])
    return float(ttft_s[column]), float(rows[column, batch])


def _alone(prefill: Prepared, picks: np.ndarray, workload: Workload) -> Pools | None:
    """As many prefill instances as there is room for, where nothing is decoded."""
    met = _met(prefill, prefill.evaluator.priced(picks), workload)
    gpus = _num_gpus(prefill, picks)
    counts = prefill.evaluator.tables.cluster.num_gpus // gpus
    served = counts * met.per_s
    best = int(np.argmax(served))
    if served[best] <= 0:
        return None
    pool = _pool(met, best, picks, int(counts[best]))
    return Pools(
        pools={"prefill": pool},
        requests_per_s=pool.requests_per_s,
        kv_transfer_s=None,
    )


def _pool(met: _Met, column: int, picks: np.ndarray, count: int) -> Pool:
    return Pool(
        picks=picks[:, met.numbers[column]],
        outcome=jax.tree.map(lambda values: values[column], met.outcome),
        instances=count,
        requests_per_s=count * float(met.per_s[column]),
    )


def _num_gpus(prepared: Prepared, picks: np.ndarray) -> np.ndarray:
    return np.array([prepared.space.degrees[d].num_gpus for d in picks[0]])


def _transfers(prepared: Mapping[str, Prepared], candidates: Candidates) -> np.ndarray:
    """Seconds of the KV transfer of a call, `[prefill, decode, batches]`.

    All of a prefill cache is handed over; it fills a share of what decode keeps.
    """
    tables = {phase: own.evaluator.tables for phase, own in prepared.items()}
    nbytes, kept = (cache_bytes(tables[phase]) for phase in ("prefill", "decode"))
    share = min(1.0, nbytes / kept) if kept else 0.0
    receivers = [
        receiver_of(tables["decode"], picks, share) for picks in candidates["decode"].T
    ]
    senders, keepers = (_num_gpus(prepared[p], candidates[p]) for p in prepared)
    batches = tables["prefill"].phases["prefill"].batches
    rows = [
        [
            transfer_s(
                batches[picks[0]],
                nbytes,
                sending,
                receiver,
                link_between(sending, keeping, tables["prefill"].cluster),
            )
            for receiver, keeping in zip(receivers, keepers.tolist(), strict=True)
        ]
        for picks, sending in zip(
            candidates["prefill"].T, senders.tolist(), strict=True
        )
    ]
    return np.array(rows)


def _taken(priced: Priced, numbers: np.ndarray) -> Priced:
    """Costs of some candidates, host; in the order of `numbers`."""
    return jax.tree.map(lambda values: np.asarray(values)[numbers], priced)


def _met(
    prepared: Prepared,
    priced: Priced,
    workload: Workload,
    handed_s: Any = 0.0,
    numbers: np.ndarray | None = None,
) -> _Met:
    pricing = prepared.evaluator.tables.pricing
    price = functools.partial(
        outcome_of,
        workload=workload,
        usable_bytes=float(pricing.cluster.usable_bytes),
        engine=pricing.engine,
    )
    found = jax.jit(price)(priced, transfer_s=handed_s)
    outcome = jax.tree.map(np.asarray, found)
    gpus = np.asarray(priced.num_gpus, np.float64)
    per_s = outcome.objective.astype(np.float64) * gpus / served_tokens(workload)
    return _Met(
        numbers=np.arange(len(per_s)) if numbers is None else numbers,
        outcome=outcome,
        per_s=np.where(outcome.violation <= 0, per_s, 0.0),
    )


def _reading(
    prefill: Prepared, picks: np.ndarray, handed_s: np.ndarray, workload: Workload
) -> _Met:
    """Every prefill candidate beside every decode candidate, prefill major."""
    many, partners, width = handed_s.shape
    numbers = np.repeat(np.arange(many), partners)
    priced = _taken(prefill.evaluator.priced(picks), numbers)
    seconds = handed_s.reshape(-1, width).astype(np.float32)
    return _met(prefill, priced, workload, seconds, numbers)


def _writing(
    decode: Prepared, picks: np.ndarray, workload: Workload
) -> tuple[_Met, np.ndarray]:
    """Decode candidates as one of `c + 1` instances.

    Returns:
      The candidates, and the column of each number of instances,
      `[candidates, num_gpus]`; -1 where there is no room. With the requests in flight
      given, they are spread evenly, so every number has a column of its own.
    """
    priced = decode.evaluator.priced(picks)
    gpus = _num_gpus(decode, picks)
    num_gpus = decode.evaluator.tables.cluster.num_gpus
    room = np.arange(1, num_gpus + 1) * gpus[:, None] < num_gpus
    if workload.concurrency is None:
        met = _met(decode, priced, workload)
        return met, np.where(room, met.numbers[:, None], -1)
    numbers, counts = np.nonzero(room)
    taken = _taken(priced, numbers)
    step = taken.steps["decode"]
    per_stage = [
        math.ceil(workload.concurrency / (count * stages))
        for count, stages in zip((counts + 1).tolist(), taken.stages, strict=True)
    ]
    others = step.batches != np.array(per_stage)[:, None]
    time_s = np.where(others, np.float32(np.inf), step.time_s)
    taken = taken._replace(steps={"decode": step._replace(time_s=time_s)})
    columns = np.full(room.shape, -1)
    columns[numbers, counts] = np.arange(len(numbers))
    met = _met(decode, taken, workload, numbers=numbers)
    # a batch that they do not fill serves no more of them
    filled = workload.concurrency / ((counts + 1) * met.outcome.concurrency)
    per_s = met.per_s * np.minimum(filled, 1.0)
    return dataclasses.replace(met, per_s=per_s), columns


def pools_bound(prepared: Mapping[str, Prepared], workload: Workload) -> float:
    """Bound on tokens/s/GPU of all pools: every phase at its relaxation, well split.

    At most `1 / (1 / r_p + 1 / r_d)` of the best rates per GPU, less where instances
    do not add up to the cluster.
    """
    best: dict[str, dict[int, float]] = {}
    for phase, own in prepared.items():
        evaluator = own.evaluator
        found = relaxed_outcome(evaluator.tables, workload, evaluator.transfer_s)
        rates = np.where(np.asarray(found.violation) <= 0, found.objective, 0.0)
        best[phase] = {}
        for degrees, rate in zip(own.space.degrees, rates.tolist(), strict=True):
            per_s = rate * degrees.num_gpus / served_tokens(workload)
            known = best[phase].get(degrees.num_gpus, 0.0)
            best[phase][degrees.num_gpus] = max(known, per_s)
    num_gpus = prepared["prefill"].evaluator.tables.cluster.num_gpus
    reading = best["prefill"]
    if "decode" in best:
        writing = best["decode"]
        per_s = np.array([*reading.values()])[:, None]
        split = best_split(
            np.broadcast_to(per_s, (len(reading), len(writing))),
            np.repeat(np.array([*writing.values()])[:, None], num_gpus, axis=1),
            list(reading),
            list(writing),
            num_gpus,
        )
        served = 0.0 if split is None else split.requests_per_s
    else:
        served = max(num_gpus // gpus * per_s for gpus, per_s in reading.items())
    return served * served_tokens(workload) / num_gpus
