"""`plan.verify` lists what XLA emits, all of it, beside what was predicted."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

import lts
from lts.compiler import CompiledProgram
from lts.cost.predict import Predicted
from lts.hlo import list_collectives
from lts.verify import HeldBytes, compare
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


def test_axes_that_split_one_sum_by_two_factors_sum_at_once():
    """Left to XLA, heads and groups of heads are an all-reduce each."""
    report = priced("two KV heads", tp=8).phase("decode").verify()
    (row,) = report.rows
    assert (row.axes, row.predicted, row.emitted) == (("x", "y", "z"), 5, 5)


def test_what_differs_is_listed_first():
    """One all-reduce of two was not predicted, and a gather was not emitted."""
    text = """HloModule m, entry_computation_layout={(f32[8])->f32[8]}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %a = f32[8] all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %b = f32[8] all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%add
}
"""
    program = CompiledProgram(
        target="cpu",
        after_spmd=text,
        final=text,
        argument_bytes=32,
        output_bytes=32,
        temp_bytes=7,
        alias_bytes=0,
        argument_local_bytes=(32,),
        result_local_bytes=(32,),
        warnings=(),
        jax_version="",
    )

    def predicted(kind: str) -> Predicted:
        return Predicted(kind=kind, axes=("tp",), nbytes=32, count=1, reason=kind)

    shape = {"dp": 2, "tp": 2}
    hoped = [predicted("all_reduce"), predicted("all_gather")]
    held = HeldBytes(argument=32, output=32, alias=0, temp=9)
    report = compare("step", program, hoped, held, shape)
    rows = [(r.kind, r.predicted, r.emitted, r.reasons) for r in report.differing]
    assert rows == [
        ("all_gather", 1, 0, ("all_gather",)),
        ("all_reduce", 1, 2, ("all_reduce",)),
    ]
    assert not report.ok
    assert (report.peak_bytes, report.predicted.peak) == (71, 73)
    assert compare("step", program, 2 * hoped[:1], held, shape).ok
    less = replace(held, argument=31)
    assert not compare("step", program, 2 * hoped[:1], less, shape).ok


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
