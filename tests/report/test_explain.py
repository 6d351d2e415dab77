"""What `explain` says of operators: source lines, specs, time and collectives."""

import inspect
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import lts
from lts.applied import AppliedStep
from lts.cost.predict import predicted_collectives
from lts.report.explain import explain_text, operations
from tests.tiny import PROMPT, model_of, priced


def mlp(x, up, down):
    with jax.named_scope("ffn/up"):
        hidden = jnp.tanh(x @ up)
    return hidden @ down


LINE = inspect.getsourcelines(mlp)[1]
UP, DOWN = f"test_explain.py:{LINE + 2}", f"test_explain.py:{LINE + 3}"


@pytest.fixture(scope="module")
def plan() -> lts.Plan:
    """Tensor parallel over four GPUs: one all-reduce, after the second product."""
    mesh = jax.make_mesh((4,), ("tp",), (AxisType.Auto,), devices=jax.devices()[:4])
    shapes = (64, 32), (32, 128), (128, 32)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return lts.price(
        mlp,
        args,
        mesh=mesh,
        cluster=lts.Cluster.parse("h100:1x4"),
        specs={"up": PartitionSpec(None, "tp"), "down": PartitionSpec("tp")},
    )


def explained(plan: lts.Plan, name: str | None = None) -> str:
    return explain_text(plan.to_dict(), name, width=120)


def words(text: str) -> list[str]:
    """Lines with runs of blanks as one."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_an_operator_is_explained_from_its_line_to_its_collectives(plan) -> None:
    lines = words(explained(plan, "ffn/up"))
    assert lines[0] == "ffn/up (dot_general)"
    assert lines[1] == f"source {UP}"
    assert lines[3:6] == [
        "reads x [64, 32] as P()",
        "up [32, 128] as P(None, 'tp')",
        "writes ffn/up: [64, 128] as P(None, 'tp')",
    ]
    assert lines[-1] == "collectives none"


def test_the_collective_is_at_the_operator_that_leaves_partial_sums(plan) -> None:
    text = explained(plan, DOWN)
    (line,) = (line for line in words(text) if "all_reduce" in line)
    (reshard,) = (p for p in plan.metrics.breakdown if p.kind == "reshard")
    assert line == (
        # the result [64, 32] in float32
        "collectives all_reduce over tp, 8.2 kB a device, writing its result, "
        f"{reshard.time_s * 1e6:.1f} us"
    )


def test_times_are_those_of_the_breakdown(plan) -> None:
    found = {own["name"]: own for own in operations(plan.to_dict())}
    parts = {part.name: part.time_s for part in plan.metrics.breakdown}
    total_s = sum(parts.values())
    assert total_s == pytest.approx(plan.metrics.step_time_s)
    for name, own in found.items():
        assert own["time_s"] == parts[name]
        assert own["share"] == pytest.approx(parts[name] / total_s)
    assert [own["source"] for own in found.values()] == [UP, DOWN]


def test_all_operators_are_listed_with_their_lines(plan) -> None:
    phase, header, up, down = words(explained(plan))
    assert phase == "step"
    assert header == "operator source shards time share collectives"
    assert up.startswith(f"ffn/up {UP} [")
    assert down.startswith(f"{DOWN} dot_general [") and down.endswith(" all_reduce")


def test_bytes_of_a_served_model_are_those_of_its_own_batch() -> None:
    """Traced at a batch of 32 and planned at one of 16; here traced at 16, too."""
    plan, model = priced("dense", dp=2, tp=4), model_of("dense")
    phase = plan.phase("decode")
    args = model.args("decode", 16, input_len=PROMPT, cache_len=PROMPT + 8)
    step = phase.apply(model.decode)
    assert isinstance(step, AppliedStep)
    found = step.prepared(args, {})
    axes = phase.assignment.degrees.axes
    rows = predicted_collectives(found.graph, found.states, axes, scatters=True)
    wanted = Counter((row.kind, row.axes, row.nbytes, row.count) for row in rows)
    assert phase.batch == 16 and wanted
    assert wanted == Counter(
        (c.kind, c.axes, c.nbytes, c.count)
        for own in plan.operations
        if own.phase == "decode"
        for c in own.collectives
    )


def test_an_argument_is_explained_by_its_spec_and_users(plan) -> None:
    first, second = words(explained(plan, "down"))
    assert first.endswith("P('tp')") and "@tp" in first
    assert second == f"used by {DOWN} dot_general"


def test_a_saved_plan_is_explained_as_well(plan, tmp_path) -> None:
    plan.save(tmp_path / "plan.json")
    loaded = lts.Plan.load(tmp_path / "plan.json")
    assert loaded.operations == plan.operations
    for name in (None, "ffn/up", DOWN, "x"):
        assert loaded.explain(name) == plan.explain(name)


def test_it_fits_a_narrow_terminal(plan) -> None:
    for name in (None, "ffn/up", DOWN):
        text = explain_text(plan.to_dict(), name, width=72)
        assert max(map(len, text.splitlines())) <= 72


@pytest.mark.parametrize(
    "name, message",
    [
        ("fnn/up", "no operator or argument 'fnn/up'; did you mean ffn/up?"),
        ("ffn/up/dot_general", "did you mean ffn/up, up?"),
        ("zzz", "there are 7 names: lts explain without --op"),
    ],
)
def test_unknown_names_are_told_with_those_that_are_close(plan, name, message) -> None:
    with pytest.raises(ValueError) as caught:
        plan.explain(name)
    assert message in str(caught.value)


def test_a_plan_without_operations_says_so(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not say what its operators do"):
        explain_text(plain)
