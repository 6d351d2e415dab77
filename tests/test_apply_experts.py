"""Mixtures of experts under a plan: outputs unsharded, collectives as planned."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lts
from lts.applied import AppliedStep
from lts.cost.predict import predicted_collectives
from lts.hlo import list_collectives
from lts.specs import without_unit_axes
from tests.after_spmd import compiled_with_dump
from tests.test_apply import TOLERANCE, generate, prompt, relative_errors, run
from tests.tiny import BATCH, CLUSTER, PROMPT, WORKLOAD
from tests.tiny_experts import (
    CONFIGS,
    LAYOUTS,
    NUM_LAYERS,
    expert_model,
    expert_states,
    laid_out,
    prepared,
)

STATES = {"ep": "batch+experts", "sum": "experts", "tp": "expert_ffn", "dp": "batch"}


@pytest.fixture(scope="module")
def unsharded():
    """Parameters and expected logits by config, computed once."""
    found = {}
    for name in CONFIGS:
        model = expert_model(name)
        params = model.init_params(jax.random.key(1))
        cache = model.init_cache(BATCH, PROMPT + 8)
        functions = jax.jit(model.prefill), jax.jit(model.decode)
        found[name] = params, generate(*functions, params, cache, prompt())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_of_a_layout_of_experts_are_the_unsharded_ones(name, layout, unsharded):
    params, expected = unsharded[name]
    plan = laid_out(name, layout)
    planned = tuple(STATES[use] for use in LAYOUTS[layout][1])
    assert expert_states(plan, "decode") == expert_states(plan, "prefill") == planned
    found = run(plan, expert_model(name), params)
    assert max(relative_errors(found, expected)) <= TOLERANCE


@pytest.mark.parametrize("layout", ["experts over all", "half by sum"])
def test_nothing_is_dropped_when_all_tokens_go_to_one_expert(layout, unsharded):
    model, (params, _) = expert_model("shared expert"), unsharded["shared expert"]
    # The bias decides the choice alone: the same four experts for every token, two of
    # them on one device. Without these experts' rows the outputs would be others.
    bias = jnp.zeros_like(params["layers"]["router_bias"]).at[:, 5:9].set(100.0)
    routed = {**params, "layers": {**params["layers"], "router_bias": bias}}
    cache = model.init_cache(BATCH, PROMPT + 8)
    functions = jax.jit(model.prefill), jax.jit(model.decode)
    expected = generate(*functions, routed, cache, prompt())
    found = run(laid_out("shared expert", layout), model, routed)
    assert max(relative_errors(found, expected)) <= TOLERANCE
    silent = {**routed["layers"], "expert_down": 0 * params["layers"]["expert_down"]}
    without = generate(*functions, {**routed, "layers": silent}, cache, prompt())
    assert min(relative_errors(without, expected)) > 100 * TOLERANCE


def collectives(plan: lts.Plan, name: str, phase: str) -> tuple[Counter, Counter]:
    """(kind, axes, bytes) of all collectives, as predicted and as emitted."""
    found = plan.phase(phase)
    step = found.apply(getattr(expert_model(name), phase))
    assert plan.model is not None
    args = plan.model.stage_problem(1).args(phase, BATCH)
    ready = step.prepared(args, {})
    _, text = compiled_with_dump(ready.step.lower(*ready.leaves))
    axes = found.assignment.degrees.axes
    predicted, emitted = Counter(), Counter()
    for row in predicted_collectives(ready.graph, ready.states, axes, scatters=False):
        predicted[row.kind, frozenset(row.axes), row.nbytes] += row.count
    for row in list_collectives(text, found.assignment.degrees.shape):
        emitted[row.kind, frozenset(row.axes), row.nbytes] += row.count
    return predicted, emitted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["shared expert", "latent attention"])
def test_collectives_of_experts_are_the_planned_ones(name, layout):
    plan = laid_out(name, layout)
    predicted, emitted = collectives(plan, name, "decode")
    assert emitted == predicted
    uses = dict(zip("xyz", LAYOUTS[layout][1], strict=True))
    on = frozenset(axis for axis, use in uses.items() if use == "ep")
    summed = frozenset(axis for axis, use in uses.items() if use in ("sum", "tp"))
    exchanges = {k: n for k, n in emitted.items() if k[0] == "all_to_all"}
    assert sum(exchanges.values()) == (2 * NUM_LAYERS if on else 0)
    assert {axes for _, axes, _ in exchanges} == ({on} if on else set())
    counted = {k: n for k, n in emitted.items() if k[2] == 4}
    assert counted == ({("all_reduce", on, 4): NUM_LAYERS} if on else {})
    sums = sum(n for k, n in emitted.items() if k[0] == "all_reduce" and k[2] != 4)
    if not summed:
        assert sums == 0
    else:
        # Embedding, and per layer attention, shared expert, experts: tensor axes.
        depth = NUM_LAYERS + (name == "latent attention")
        assert sums == 1 + 2 * depth + NUM_LAYERS
    assert not [kind for kind, *_ in emitted if kind == "all_gather"]


def test_a_searched_plan_of_experts_runs_and_is_verified(unsharded):
    model, (params, expected) = expert_model("experts"), unsharded["experts"]
    plan = lts.search(
        model,
        cluster=CLUSTER,
        workload=WORKLOAD,
        method="annealing",
        budget=512,
        max_stages=1,
    )
    found = run(plan, model, params)
    assert max(relative_errors(found, expected)) <= TOLERANCE
    assert np.isfinite(plan.metrics.tpot_s)


@pytest.mark.parametrize("name", ["experts", "latent attention"])
def test_any_candidate_of_experts_gives_the_unsharded_outputs(name, unsharded):
    """Random roles and overrides are only ever a matter of speed."""
    model, (params, expected) = expert_model(name), unsharded[name]
    space, good = prepared(name).space, laid_out(name, "data x experts")
    rng = np.random.default_rng(5)
    picks = rng.integers(space.cardinalities)
    overridden = rng.random(space.num_genes) < 0.2
    picks[space.first_override :] *= overridden[space.first_override :]
    picks[0] = next(i for i, d in enumerate(space.degrees) if d.stages == 1)
    assignment = without_unit_axes(space.decode(picks))
    steps = [
        AppliedStep(
            function=getattr(model, phase),
            assignment=assignment,
            phase=phase,
            dims=good.phase(phase).dims,
            mesh=good.phase(phase).mesh(),
            weights=("params",),
        )
        for phase in ("prefill", "decode")
    ]
    cache = model.init_cache(BATCH, PROMPT + 8)
    args = steps[0].device_put(params, cache, prompt())
    found = generate(*steps, *args)
    assert max(relative_errors(found, expected)) <= TOLERANCE
