"""Gradients of convolutions with the batch split over one of two mesh axes.

The gradient of a grouped kernel sums over the batch in a convolution with groups of the
batch. XLA's partitioner (jaxlib 0.10.2, 0.12.0) sums over too many devices there.
"""

import jax
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import lts
from tests.programs import state_space
from tests.programs.judge import CLUSTER, assert_same_outputs
from tests.programs.program import Program, shape


def down_and_up() -> Program:
    """A strided convolution, one of groups and a transposed one, as in a U-Net."""

    def run(params, x):
        down, groups, up = params
        layout = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, down, (2, 2), "SAME", dimension_numbers=layout)
        x = lax.conv_general_dilated(
            x, groups, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=4
        )
        return lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=layout)

    params = shape(3, 3, 4, 8), shape(3, 3, 2, 8), shape(3, 3, 8, 4)
    return Program(function=run, args=(params, shape(8, 8, 8, 4)))


PROGRAMS = {
    "depthwise, of Mamba": lambda: state_space.mamba("sequential", layers=1),
    "strided, grouped and transposed": down_and_up,
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
