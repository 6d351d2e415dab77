"""Measured rows to points of the serving model: operator times at each row's load.

Rows of one model, layout, precision and GPU are priced together.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.e2e.deployments import (
    DEFAULT_REQUESTS,
    LONG_TOKENS,
    REQUESTS_AT_MAX_LOAD,
    Deployment,
    deployment_of,
)
from experiments.e2e.machines import cluster_of
from experiments.e2e.models import Models
from experiments.e2e.rows import Row
from lts.calibrate.profiles import (
    ALONE,
    AT_ONCE_RATE,
    CLOSED_RATE,
    STEP,
    TPOT,
    TTFT,
    Points,
    joined,
    predicted,
)
from lts.cost.profile import Profile
from lts.cost.served_memory import request_bytes, weight_bytes
from lts.cost.served_step import CLASSES, Kernels, Layout, Step, per_rank
from lts.cost.steady import capacity
from lts.cost.step_operators import rank_step
from lts.hardware import Cluster

MOST_IN_FLIGHT = 4096
"""Sequences that an engine runs at once, whatever memory there is."""

_OPEN_ROUNDS = 6  # of requests in flight against latency, by Little's law


@dataclass(frozen=True, eq=False, kw_only=True)
class Priced:
    """Rows that have a prediction, their points in the same order, and the others."""

    rows: list[Row]
    points: Points
    deployments: list[Deployment]
    misses: list[tuple[Row, str]]


def price(
    rows: Sequence[Row], models: Models, kernels: Callable[[Cluster], Kernels]
) -> Priced:
    """Points of all rows that can be predicted."""
    misses: list[tuple[Row, str]] = []
    alike: dict[tuple, list[int]] = defaultdict(list)
    found: list[tuple[Row, Deployment]] = []
    for row in rows:
        try:
            deployment = deployment_of(row, models.find(row.model))
            cluster_of(row.gpu)
        except ValueError as error:
            misses.append((row, str(error)))
            continue
        own = deployment
        key = (row.model, row.gpu, own.layout, own.precision, own.memory)
        alike[key].append(len(found))
        found.append((row, deployment))
    order, parts = [], []
    for places in alike.values():
        cluster = cluster_of(found[places[0]][0].gpu)
        order += places
        own = [found[place] for place in places]
        parts.append(_points(own, cluster, kernels(cluster)))
    back = np.argsort(order)
    return Priced(
        rows=[row for row, _ in found],
        points=joined(parts).at(back),
        deployments=[deployment for _, deployment in found],
        misses=misses,
    )


def _points(
    own: Sequence[tuple[Row, Deployment]], cluster: Cluster, kernels: Kernels
) -> Points:
    """Points of rows that share model, layout, precision and GPU."""
    rows, deployments = zip(*own, strict=True)
    first = deployments[0]
    model, layout, precision = first.model, first.layout, first.precision
    read = np.array([d.input_len for d in deployments])
    written = np.array([d.output_len for d in deployments])
    weights = weight_bytes(model, layout, precision)
    free = first.memory.cache_bytes(cluster.chip.hbm_bytes, weights)
    length = read + first.memory.kept_output * written
    each = request_bytes(model, layout, precision, length)
    room = capacity(free, each, layout.dp)
    sent = np.array(
        [_requests(row, d) for row, d in zip(rows, deployments, strict=True)]
    )
    in_flight = np.minimum(np.minimum(sent, room), MOST_IN_FLIGHT)
    quantity = np.array([_quantity(row) for row in rows])
    alone_prompts = np.where(quantity == ALONE, sent, 1.0)

    def points(in_flight: np.ndarray) -> Points:
        context = read + written / 2
        batch = np.maximum(in_flight / layout.pp, 1.0)
        waves = np.floor(sent / in_flight + 1e-9)
        rest = np.maximum(sent - waves * in_flight, 0.0)
        last = np.maximum(rest / layout.pp, 1.0)

        def times(step: Step) -> np.ndarray:
            found = rank_step(model, layout, precision, kernels, step)
            shaped = [np.broadcast_to(found[name], read.shape) for name in CLASSES]
            return np.stack(shaped, -1)

        decode = times(Step(sequences=batch, context=context))

        def joined_by(prompts: np.ndarray) -> np.ndarray:
            """What each of some prompts adds to a step."""
            both = times(
                Step(sequences=batch, context=context, prompts=prompts, prompt_len=read)
            )
            return (both - decode) / prompts[:, None]

        prompt = joined_by(np.ones(len(read)))
        if layout.dp > 1:
            prompt = joined_by(side_by_side(prompt, decode, in_flight, written, layout))
        full = np.ones(len(read))
        return Points(
            decode=decode,
            last=times(Step(sequences=last, context=context)),
            prompt=prompt,
            alone=times(Step(prompts=alone_prompts, prompt_len=read)),
            in_flight=in_flight,
            rank_sequences=per_rank(batch, layout.dp),
            rank_last=per_rank(last, layout.dp),
            waves=waves,
            rest=rest,
            requests=sent,
            servers=np.array([d.servers for d in deployments], float),
            output_len=written,
            layers=full * model.num_layers,
            expert_layers=full * model.num_expert_layers,
            expert_doublings=full * np.log2(layout.ep),
            stages=full * layout.pp,
            quantity=quantity,
            value=np.array([row.value for row in rows]),
        )

    rate = np.array([row.rate or 0.0 for row in rows])
    if not rate.any():
        return points(in_flight)
    servers = np.array([d.servers for d in deployments])
    for _ in range(_OPEN_ROUNDS):
        found = points(in_flight)
        later = predicted(found._replace(quantity=0 * quantity + TPOT), Profile())
        waited = rate / servers * later * written
        in_flight = np.where(rate > 0, np.clip(waited, 1.0, room), in_flight)
    return points(in_flight)


def side_by_side(
    prompt: np.ndarray,
    decode: np.ndarray,
    in_flight: np.ndarray,
    output_len: np.ndarray,
    layout: Layout,
) -> np.ndarray:
    """Prompts that attention replicas read in one step, each its own; `[points]`.

    At least one, and all replicas read one where there is hardly time for anything
    else: others finish and start while a prompt is read. Between, the share of time
    that prompts take.
    """
    joining = in_flight / output_len
    busy = joining * prompt.sum(-1)
    share = busy / (busy + decode.sum(-1))
    return np.clip(np.maximum(joining, 1 + (layout.dp - 1) * share), 1.0, layout.dp)


def _requests(row: Row, deployment: Deployment) -> float:
    """In flight or sent, of one server."""
    if deployment.requests is not None:
        return deployment.requests
    if row.load != "max":
        return 1.0  # an open rate: found by Little's law
    lengths = (int(row.input_len or 0), int(row.output_len or 0))
    if lengths in REQUESTS_AT_MAX_LOAD:
        return REQUESTS_AT_MAX_LOAD[lengths]
    return DEFAULT_REQUESTS["long" if sum(lengths) > LONG_TOKENS else "short"]


def _quantity(row: Row) -> int:
    if row.quantity == "tpot_s":
        return STEP if row.load == "static" else TPOT
    if row.quantity == "ttft_s":
        return ALONE if row.load == "static" else TTFT
    return CLOSED_RATE if row.load in ("closed", "open") else AT_ONCE_RATE
