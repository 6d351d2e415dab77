"""Gradients of convolutions with the batch split over one of two mesh axes.

The gradient of a grouped kernel sums over the batch in a convolution with groups of the
batch. XLA's partitioner (jaxlib 0.10.2, 0.12.0) sums over too many devices there.
"""

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

import lts
from tests.programs import diffusion, state_space
from tests.programs.judge import CLUSTER, assert_same_outputs
from tests.programs.program import Program

PROGRAMS = {
    "depthwise, of Mamba": lambda: state_space.mamba("sequential", layers=1),
    "strided and transposed, of a U-Net": lambda: diffusion.unet("transpose"),
}


def gradients(program: Program) -> Program:
    """Of the mean square of the result, with respect to the parameters."""

    def loss(params, *inputs):
        return (program.function(params, *inputs) ** 2).mean()

    return Program(function=jax.grad(loss), args=program.args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_a_split_batch_are_those_of_the_whole(name):
    program = gradients(PROGRAMS[name]())
    mesh = jax.make_mesh((2, 4), ("data", "other"), axis_types=(AxisType.Auto,) * 2)
    plan = lts.price(
        program.function,
        program.args,
        cluster=CLUSTER,
        mesh=mesh,
        specs={"1": PartitionSpec("data")},
    )
    assert_same_outputs(plan, program, 1e-5)
    assert plan.verify(program.function, program.args).ok
