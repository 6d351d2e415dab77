"""`plan.verify` lists what XLA emits, all of it, beside what was predicted."""

from collections import Counter

import jax
import numpy as np
import pytest

import lts
from lts.hlo import list_collectives
from tests.after_spmd import compiled_with_dump
from tests.tiny import CLUSTER, model_of, priced


def emitted(report) -> Counter:
    return Counter(
        {(r.kind, r.axes, r.nbytes): r.emitted for r in report.rows if r.emitted}
    )


@pytest.mark.parametrize(
    "name, degrees",
    [
        ("dense", {"tp": 4, "dp": 2}),
        ("two KV heads", {"tp": 8}),
        ("tied", {"dp": 2, "cp": 2, "tp": 2}),
    ],
    ids=str,
)
def test_every_emitted_collective_is_listed(name, degrees):
    """The same step compiled in this process, on 8 devices, has the same ones."""
    plan, model = priced(name, **degrees), model_of(name)
    for report in plan.verify().reports:
        phase = plan.phase(report.phase)
        step = phase.apply(getattr(model, report.phase))
        args = plan.model.stage_problem(1).args(report.phase, phase.batch)
        mesh_shape = plan.assignment.degrees.shape
        found: Counter = Counter()
        compiled, dump = compiled_with_dump(step.lower(*args))
        for c in list_collectives(dump, mesh_shape):
            found[c.kind, c.axes, c.nbytes] += c.count
        assert emitted(report) == found
        local = sum(
            np.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf, sharding in zip(
                jax.tree.leaves(args), compiled.input_shardings[0], strict=True
            )
        )
        assert report.argument_bytes == report.predicted_argument_bytes == local


def test_tensor_parallel_decoder_has_two_all_reduces_a_layer_and_one_to_embed():
    plan = priced("dense", tp=4, dp=2)
    verification = plan.verify()
    assert verification.ok
    (row,) = verification.reports[1].rows
    # decode: batch 16 over dp 2, hidden 64, float32; 2 layers and the embedding
    assert (row.kind, row.nbytes, row.emitted) == ("all_reduce", 16 // 2 * 64 * 4, 5)
    assert row.axes == ("y", "z")


def test_a_data_parallel_decoder_has_no_collective():
    verification = priced("dense", dp=8).verify()
    assert verification.ok
    assert verification.rows == ()


def test_a_collective_predicted_wrong_is_listed_as_differing():
    """Two axes that split one sum by two factors are two all-reduces in XLA."""
    report = priced("two KV heads", tp=8).phase("decode").verify()
    assert not report.ok
    differing = {(r.axes, r.predicted, r.emitted) for r in report.differing}
    assert differing == {
        (("x", "y", "z"), 5, 3),
        (("x", "y"), 0, 2),
        (("z",), 0, 2),
    }


def test_a_stage_of_a_pipeline_is_compiled_on_its_own_mesh():
    verification = priced("dense", pp=2, tp=2, dp=2).verify()
    assert verification.ok
    (row,) = verification.reports[1].rows
    # one layer a stage: two all-reduces, and one to embed; batch 16 / 2 stages / 2
    assert (row.nbytes, row.emitted) == (16 // 2 // 2 * 64 * 4, 3)


def test_a_function_is_verified_with_its_arguments():
    def function(x, up, *, down):
        return jax.numpy.tanh(x @ up) @ down

    args = jax.numpy.ones((64, 32)), jax.numpy.ones((32, 128))
    kwargs = {"down": jax.numpy.ones((128, 32))}
    plan = lts.search(
        function, args, kwargs, cluster=CLUSTER, method="random", budget=200
    )
    verification = plan.verify(function, args, kwargs)
    assert verification.reports[0].phase == "step"
    report = verification.reports[0]
    assert report.argument_bytes == report.predicted_argument_bytes


def test_other_targets_are_refused():
    with pytest.raises(ValueError, match="target is 'tpu'"):
        priced("dense", tp=8).verify(target="tpu")
