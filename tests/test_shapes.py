"""One plan over a set of shapes: its layouts, its times, and how it is applied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import lts
from lts.applied import AppliedStep
from lts.plain import plain_function
from lts.prepare import prepare_plain
from lts.report.text import plan_text
from lts.tracing.labels import dim_names

CLUSTER = lts.Cluster.parse("h100:1x8")
SPECS = {
    "x": PartitionSpec("dp"),
    "up": PartitionSpec(None, "tp"),
    "down": PartitionSpec("tp"),
}


def mlp(x, up, down):
    return jnp.tanh(x @ up) @ down


def args_of(rows: int):
    shapes = (rows, 512), (512, 2048), (2048, 512)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def found(*rows: int, function=mlp, **options) -> lts.Plan:
    options = {"cluster": CLUSTER, "method": "random", "budget": 8, **options}
    return lts.search(function, shapes=map(args_of, rows), **options)


def given(*rows: int) -> lts.Plan:
    """The layout by hand on a mesh of 2 x 4."""
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), (AxisType.Auto,) * 2)
    first, *more = map(args_of, rows)
    return lts.price(mlp, first, shapes=more, mesh=mesh, cluster=CLUSTER, specs=SPECS)


def test_every_shape_takes_what_it_takes_alone_and_the_mean_counts():
    alone = [given(rows).metrics for rows in (64, 4096, 8)]
    plan = given(64, 4096, 8)
    times = [shape.step_time_s for shape in plan.metrics.shapes]
    assert times == pytest.approx([own.step_time_s for own in alone], rel=1e-6)
    assert plan.metrics.step_time_s == pytest.approx(np.mean(times), rel=1e-6)
    assert plan.objective == pytest.approx(1 / np.mean(times), rel=1e-6)
    peak_bytes = max(own.peak_bytes for own in alone)
    assert plan.metrics.peak_bytes == pytest.approx(peak_bytes, rel=1e-6)
    assert plan.objective <= plan.bound


def test_the_parts_of_the_step_are_those_of_the_first_shape():
    plan = given(64, 4096)
    assert {part.phase for part in plan.metrics.breakdown} == {"step"}
    total_s = sum(part.time_s for part in plan.metrics.breakdown)
    assert total_s == pytest.approx(plan.metrics.shapes[0].step_time_s)
    assert list(plan.phases) == ["step"]
    assert plan.main_phase.step_time_s == pytest.approx(total_s)


@pytest.mark.parametrize("rows, most", [((8, 12), 4), ((8, 1), 1), ((1, 8), 1)])
def test_layouts_divide_every_shape_and_are_the_same_at_each(rows, most):
    """Of 8 and 12 rows at most 4 ways are shards; a single row is never sharded."""
    plain = plain_function(mlp, None, {}, map(args_of, rows))
    prepared = prepare_plain(plain, CLUSTER)
    space, row = prepared.space, dim_names(prepared.graphs)["x"][0]
    rng, ways = np.random.default_rng(0), set()
    for _ in range(64):
        picks = rng.integers(0, space.cardinalities)
        assignment = space.decode(picks)
        first, second = (assignment.states[p] for p in ("step", "step#2"))
        assert all(first[name] == second[name] for name in first)
        axes = zip(assignment.degrees.axes, first["x"], strict=True)
        ways.add(int(np.prod([a.size for a, s in axes if s == row], dtype=int)))
    assert max(ways) == most


def test_one_plan_runs_at_every_shape():
    step = given(8, 16, 2).apply(mlp)
    keys = jax.random.split(jax.random.key(0), 3)
    for rows in (8, 16, 2, 4):
        args = [
            jax.random.normal(key, leaf.shape) / 16
            for key, leaf in zip(keys, args_of(rows), strict=True)
        ]
        assert isinstance(step, AppliedStep)
        found = step(*step.device_put(*args))
        np.testing.assert_allclose(found, mlp(*args), rtol=1e-4, atol=1e-5)


def test_each_shape_is_held_against_the_best_plan_found_for_it_alone(tmp_path):
    plan = found(64, 4096, budget=64, seed=1)
    for shape, rows in zip(plan.metrics.shapes, (64, 4096), strict=True):
        single = lts.search(
            mlp, args_of(rows), cluster=CLUSTER, method="random", budget=32, seed=1
        )
        # what serves all shapes serves one of them alone, too
        best_s = min(single.metrics.step_time_s, shape.step_time_s)
        assert shape.alone_s == pytest.approx(best_s, rel=1e-6)
        assert shape.arguments == {"x": (rows, 512)}
    worst = plan.metrics.worst_shape
    assert worst is not None and worst.over_alone is not None
    assert worst.over_alone == max(s.over_alone or 0 for s in plan.metrics.shapes) >= 1
    plan.save(tmp_path / "plan.json")
    assert lts.Plan.load(tmp_path / "plan.json").metrics == plan.metrics
    (line,) = [x for x in repr(plan).splitlines() if x.endswith("worst")]
    label = f"x [{worst.arguments['x'][0]}, 512]"
    assert label in line and f"{worst.over_alone:.2f}x" in line


def test_without_a_search_the_slowest_shape_is_the_worst():
    worst = given(64, 4096, 8).metrics.worst_shape
    assert worst is not None
    assert (worst.name, worst.over_alone) == ("step#2", None)
    assert given(64).metrics.worst_shape is None


def test_the_report_shows_every_shape_in_a_narrow_terminal():
    text = plan_text(given(64, 4096).to_dict(), width=72)
    assert max(map(len, text.splitlines())) <= 72
    assert "mean of 2 shapes" in text
    assert "Time of a step, at x [64, 512]" in text


def test_shapes_may_have_keyword_arguments():
    def scaled(x, *, by):
        return x @ by

    array = jax.ShapeDtypeStruct
    by = array((64, 32), jnp.float32)
    calls = [((array((n, 64), jnp.float32),), {"by": by}) for n in (8, 32)]
    plan = lts.search(scaled, shapes=calls, cluster=CLUSTER, method="random", budget=8)
    assert [s.arguments for s in plan.metrics.shapes] == [
        {"x": (8, 64)},
        {"x": (32, 64)},
    ]


def test_another_program_at_another_shape_is_refused():
    def halves(x, up, down):
        return mlp(x, up, down) if len(x) < 64 else x @ (up @ down)

    with pytest.raises(ValueError, match="another program at step#2 than at step"):
        found(8, 64, function=halves)


def test_arguments_of_a_call_are_a_tuple():
    with pytest.raises(ValueError, match="are a tuple, .* got list"):
        lts.search(mlp, shapes=[list(args_of(8))], cluster=CLUSTER)
