"""From step times to TTFT, TPOT and tokens per second of a served model.

Where prefill and decode share the GPUs (*colocated*), `B` requests are in flight in
steady state; while one decodes its `O - 1` further tokens, the others' prompts are
prefilled in between, `P` at a time:

    TPOT = t_decode(B) + (B - 1) / (O - 1) * t_prefill(P) / (P * stages)
    tokens/s = B * O / ((O - 1) * t_decode(B) + B * t_prefill(P) / (P * stages))

As two *pools*, prefill has instances of its own, which hand the KV caches over to those
of decode (`lts.cost.transfer`). An instance serves so many requests per second:

    prefill: P / max(t_prefill(P) / stages, t_transfer(P))    beside computing
    decode:  B / ((O - 1) * t_decode(B))
    TPOT = t_decode(B)

A step of a pipeline takes its whole depth at `B / stages` sequences a stage; prompts
overlap over stages. Steps have what the engine adds to its operators (`engine_step`),
and a first token waits as `lts.cost.steady.ttft_s` says.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lts.cost import steady
from lts.cost.profile import Profile
from lts.graph import EXPERTS, OpGraph
from lts.workload import Workload

IMPOSSIBLE = 50.0
"""Violation of a plan that no batch divides: beyond any overshoot (natural log)."""

LEAST_STEP_S = 1e-9
"""Floor under the step time, so that a program without work has a finite objective."""


class Step(NamedTuple):
    """One phase of many candidates: time and activations at every batch.

    `time_s`, `activation_bytes` and `batches` (per stage) are `[candidates, batches]`.
    """

    time_s: jax.Array
    activation_bytes: jax.Array
    batches: jax.Array


class Priced(NamedTuple):
    """What many candidates cost at every batch, before anything is served.

    `steps` are by phase; `held_bytes` are a plain function's inputs and results,
    `weight_bytes` per GPU, `cache_bytes` per GPU and request; `stages` and `num_gpus`
    are those of an instance. All but the steps `[candidates]`.
    """

    steps: Mapping[str, Step]
    held_bytes: jax.Array
    weight_bytes: jax.Array
    cache_bytes: jax.Array
    stages: jax.Array
    num_gpus: jax.Array


class Outcome(NamedTuple):
    """What every candidate reaches at its best batch; all `[candidates]`.

    `violation` is 0 for a feasible candidate, else the sum of the natural logs of how
    far memory, TTFT and TPOT overshoot, at the batch where that is least. `places` are
    the indices of the best batches (decode, prefill).
    """

    objective: jax.Array
    violation: jax.Array
    ttft_s: jax.Array
    tpot_s: jax.Array
    step_time_s: jax.Array
    peak_bytes: jax.Array
    concurrency: jax.Array
    places: tuple[jax.Array, jax.Array]


def depth_of(graph: OpGraph) -> steady.Depth:
    """Layers, and layers with experts: what launches are counted by.

    A layer is what attends once; without attention, what repeats most.
    """
    reads = [op for op in graph.ops if op.attention is not None]
    found = sum(op.attention.share * op.trips for op in reads if op.attention)
    layers = found or max((op.trips for op in graph.ops), default=1)
    experts = sum(op.trips for op in graph.ops if op.primitive == EXPERTS)
    return steady.Depth(layers=float(layers), expert_layers=float(experts))


def engine_step(
    step: Step, phase: str, stages: jax.Array, depth: steady.Depth, engine: Profile
) -> Step:
    """A step with the launches and host work of an engine.

    Args:
      phase: "prefill" reads prompts, "decode" generates.
      stages: `[candidates]`.
    """
    time_s = step.time_s + steady.launches_s(depth, engine)
    if phase == "prefill":
        time_s = engine.prefill * (time_s + engine.prompt_s * step.batches)
        return step._replace(time_s=time_s)
    in_flight = step.batches * stages[:, None]
    passed_on = engine.handover_s * in_flight * (1 - 1 / stages[:, None])
    return step._replace(time_s=time_s + engine.step_s + passed_on)


def _over(value: jax.Array, limit: float | None) -> jax.Array:
    over = 0.0 if limit is None else jnp.clip(jnp.log(value / limit), 0.0, IMPOSSIBLE)
    return jnp.where(jnp.isfinite(value), over, IMPOSSIBLE)


def _best(objective: jax.Array, violation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Index of the best entry along the last axis, and the violation there."""
    feasible = violation <= 0
    best = jnp.argmax(jnp.where(feasible, objective, -jnp.inf), -1)
    nearest = jnp.argmin(violation, -1)
    place = jnp.where(feasible.any(-1), best, nearest)
    return place, jnp.take_along_axis(violation, place[:, None], -1)[:, 0]


def _at(values: jax.Array, place: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, place[:, None], -1)[:, 0]


def plain_outcome(
    steps: Sequence[Step], held_bytes: jax.Array, usable_bytes: float
) -> Outcome:
    """Outcome of a plain function: objective 1 / step time, within memory.

    Args:
      steps: at every shape that it is called with; the mean of their times counts, and
        the most that any needs.
      held_bytes: at the largest shape, `[candidates]`.
    """
    mean_s = sum(step.time_s[:, 0] for step in steps) / len(steps)
    time_s = jnp.maximum(mean_s, LEAST_STEP_S)
    active = jnp.stack([step.activation_bytes[:, 0] for step in steps])
    peak = held_bytes + active.max(0)
    violation = _over(peak, usable_bytes) + _over(time_s, None)
    none = jnp.full_like(time_s, jnp.nan)
    zero = jnp.zeros(len(time_s), jnp.int32)
    return Outcome(
        objective=1.0 / time_s,
        violation=violation,
        ttft_s=none,
        tpot_s=none,
        step_time_s=time_s,
        peak_bytes=peak,
        concurrency=none,
        places=(zero, zero),
    )


def served_tokens(workload: Workload) -> int:
    """Tokens that count per request: those generated, those read if there are none."""
    return workload.output_len or workload.input_len


def prefill_outcome(
    prefill: Step,
    weight_bytes: jax.Array,
    cache_bytes: jax.Array,
    stages: jax.Array,
    workload: Workload,
    num_gpus: jax.Array | int,
    usable_bytes: float,
    transfer_s: jax.Array | float = 0.0,
    engine: Profile | None = None,
) -> Outcome:
    """Outcome of instances that prefill only; objective: tokens served/s/GPU.

    Of a request that generates tokens, these are the tokens whose prompts are read.

    Args:
      weight_bytes: per GPU, `[candidates]`.
      cache_bytes: per GPU and prompt, `[candidates]`.
      stages: `[candidates]`.
      num_gpus: of an instance, `[candidates]`.
      transfer_s: of the caches of one call, `[candidates, batches]`.
      engine: whose host a first token passes; None for none.
    """
    batch = prefill.batches * stages[:, None]
    peak = weight_bytes[:, None] + prefill.activation_bytes
    peak = peak + cache_bytes[:, None] * batch
    period_s = jnp.maximum(prefill.time_s / stages[:, None], transfer_s)
    tokens_per_s = prefill.batches * served_tokens(workload) / period_s
    ttft_s = prefill.time_s + transfer_s
    if engine is not None:
        ttft_s = ttft_s + engine.host_s
    violation = _over(peak, usable_bytes) + _over(ttft_s, workload.ttft_s)
    tokens_per_s = tokens_per_s / jnp.broadcast_to(num_gpus, stages.shape)[:, None]
    place, least = _best(tokens_per_s, violation)
    none = jnp.full_like(least, jnp.nan)
    return Outcome(
        objective=_at(tokens_per_s, place),
        violation=least,
        ttft_s=_at(ttft_s, place),
        tpot_s=none,
        step_time_s=_at(prefill.time_s, place),
        peak_bytes=_at(peak, place),
        concurrency=_at(batch, place).astype(jnp.float32),
        places=(place, place),
    )


def decode_outcome(
    decode: Step,
    weight_bytes: jax.Array,
    cache_bytes: jax.Array,
    stages: jax.Array,
    workload: Workload,
    num_gpus: jax.Array,
    usable_bytes: float,
) -> Outcome:
    """Outcome of instances that decode only; objective: generated tokens/s/GPU.

    The first token of a request comes from prefill. Arguments as `prefill_outcome`.
    """
    further = max(workload.output_len - 1, 1)
    in_flight = (decode.batches * stages[:, None]).astype(jnp.float32)
    peak = weight_bytes[:, None] + decode.activation_bytes
    peak = peak + cache_bytes[:, None] * in_flight
    time_s = jnp.maximum(decode.time_s, LEAST_STEP_S)
    tokens_per_s = in_flight * workload.output_len / (further * time_s)
    violation = _over(peak, usable_bytes) + _over(time_s, workload.tpot_s)
    place, least = _best(tokens_per_s / num_gpus[:, None], violation)
    return Outcome(
        objective=_at(tokens_per_s, place) / num_gpus,
        violation=least,
        ttft_s=jnp.full_like(least, jnp.nan),
        tpot_s=_at(time_s, place),
        step_time_s=_at(time_s, place),
        peak_bytes=_at(peak, place),
        concurrency=_at(in_flight, place),
        places=(place, place),
    )


def colocated_outcome(
    decode: Step,
    prefill: Step,
    weight_bytes: jax.Array,
    cache_bytes: jax.Array,
    stages: jax.Array,
    workload: Workload,
    num_gpus: jax.Array | int,
    usable_bytes: float,
    engine: Profile | None = None,
) -> Outcome:
    """Outcome of prefill and decode on the same GPUs; generated tokens/s/GPU.

    Args:
      engine: as which a first token waits; None: for its prefill and a running step.
      weight_bytes: per GPU, `[candidates]`.
      cache_bytes: per GPU and request, `[candidates]`.
      stages: `[candidates]`.
    """
    further = max(workload.output_len - 1, 0)
    # [candidates, decode batches, prefill batches]
    stage = stages[:, None, None]
    per_stage, prompts = decode.batches[:, :, None], prefill.batches[:, None, :]
    in_flight = (per_stage * stage).astype(jnp.float32)
    decode_s = decode.time_s[:, :, None]
    prompt_s = prefill.time_s[:, None, :] / (prompts * stage)
    tpot_s = decode_s + (in_flight - 1) / max(further, 1) * prompt_s
    cycle_s = further * decode_s + in_flight * prompt_s
    tokens_per_s = in_flight * workload.output_len / cycle_s
    alone_s = prefill.time_s[:, None, :]
    ttft_s = alone_s + decode_s
    if engine is not None:
        ttft_s = steady.ttft_s(
            alone_s, prompt_s, decode_s, in_flight, tokens_per_s, engine
        )
    activations = jnp.maximum(
        decode.activation_bytes[:, :, None], prefill.activation_bytes[:, None, :]
    )
    peak = weight_bytes[:, None, None] + cache_bytes[:, None, None] * in_flight
    peak = peak + activations
    violation = (
        _over(peak, usable_bytes)
        + _over(ttft_s, workload.ttft_s)
        + _over(tpot_s, workload.tpot_s)
        + jnp.where(prompts <= jnp.maximum(per_stage, 1), 0.0, IMPOSSIBLE)
    )
    shape = violation.shape

    def flat(values: jax.Array) -> jax.Array:
        return jnp.broadcast_to(values, shape).reshape(shape[0], -1)

    place, least = _best(flat(tokens_per_s), flat(violation))
    return Outcome(
        objective=_at(flat(tokens_per_s), place) / num_gpus,
        violation=least,
        ttft_s=_at(flat(ttft_s), place),
        tpot_s=_at(flat(tpot_s), place),
        step_time_s=_at(flat(decode_s), place),
        peak_bytes=_at(flat(peak), place),
        concurrency=_at(flat(in_flight), place),
        places=(place // shape[2], place % shape[2]),
    )


def outcome_of(
    priced: Priced,
    workload: Workload | None,
    usable_bytes: float,
    transfer_s: jax.Array | float = 0.0,
    engine: Profile | None = None,
) -> Outcome:
    """Outcome at the best batch: of a plain function (no workload), or of a model.

    A model is colocated if both phases are priced; one phase is that of a pool.

    Args:
      transfer_s: of a prefill pool, as `prefill_outcome`.
      engine: that serves the model.
    """
    steps = priced.steps
    if workload is None:
        held_bytes = priced.held_bytes + priced.weight_bytes + priced.cache_bytes
        return plain_outcome([*steps.values()], held_bytes, usable_bytes)
    common = (
        priced.weight_bytes,
        priced.cache_bytes,
        priced.stages,
        workload,
        priced.num_gpus,
        usable_bytes,
    )
    if len(steps) == 2:
        return colocated_outcome(steps["decode"], steps["prefill"], *common, engine)
    if "decode" in steps:
        return decode_outcome(steps["decode"], *common)
    return prefill_outcome(steps["prefill"], *common, transfer_s, engine)
