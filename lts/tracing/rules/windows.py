"""Rules of convolutions and of reductions over windows.

A dim that a window slides along must be whole, unless the window is one element wide
and moves by one: neighbours would have to exchange their edges.
"""

import math
from collections.abc import Sequence

import numpy as np

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule


def _is_still(params, dim: int) -> bool:
    """Whether the window of a dim leaves it as it is."""
    dilation = params.get("base_dilation")
    return (
        params["window_dimensions"][dim] == 1
        and params["window_strides"][dim] == 1
        and tuple(params["padding"][dim]) == (0, 0)
        and (dilation is None or dilation[dim] == 1)
    )


def reduce_window(eq: Equation) -> OpRule:
    """A reduction over windows, or the gradient of one; initial values are scalars."""
    rule, largest = OpRule(), max(eq.ins, key=lambda tensor: math.prod(tensor.shape))
    rank = len(largest.shape)
    still = {
        dim: rule.add(extent)
        for dim, extent in enumerate(largest.shape)
        if _is_still(eq.params, dim)
    }
    moved: dict[tuple[int, int], int] = {}

    def dims(shape: Sequence[int]) -> list[int | None]:
        found: list[int | None] = []
        for dim, extent in enumerate(shape if len(shape) == rank else ()):
            if dim not in still and (dim, extent) not in moved:
                moved[dim, extent] = rule.add(extent, blocked=True)
            found.append(still[dim] if dim in still else moved[dim, extent])
        return found

    rule.operands = [dims(tensor.shape) for tensor in eq.ins]
    rule.results = [dims(tensor.shape) for tensor in eq.outs]
    return rule


def _taps(
    size: int, kernel: int, out: int, stride: int, low: int, holes: int, spread: int
) -> int:
    """Products along one spatial dim: pairs of output and tap that meet an element.

    Args:
      low: padding before the first element.
      holes: `lhs_dilation`, the distance of elements.
      spread: `rhs_dilation`, the distance of taps.
    """
    places = np.arange(out)[:, None] * stride - low + np.arange(kernel) * spread
    inside = (places >= 0) & (places <= (size - 1) * holes) & (places % holes == 0)
    return int(inside.sum())


def convolution(eq: Equation) -> OpRule:
    """A convolution: batch and output features pass through, input features are summed.

    Groups of features are the outer part of both feature dims: these may be split
    group by group. Groups of the batch (gradients of grouped convolutions) must be
    whole. Arithmetic leaves padding out, as XLA's count does.
    """
    params, numbers = eq.params, eq.params["dimension_numbers"]
    lhs, rhs, out = eq.ins[0].shape, eq.ins[1].shape, eq.outs[0].shape
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    (n_l, c_l, *space_l), (o_r, c_r, *space_r), (n_o, c_o, *space_o) = numbers
    rule = OpRule()
    left: list[int | None] = [None] * len(lhs)
    right: list[int | None] = [None] * len(rhs)
    result: list[int | None] = [None] * len(out)
    whole = batches > 1
    left[n_l] = rule.add(lhs[n_l], blocked=whole)
    result[n_o] = rule.add(out[n_o], blocked=True) if whole else left[n_l]
    if groups > 1:
        left[c_l] = right[o_r] = result[c_o] = rule.add(groups)
        right[c_r] = rule.add(rhs[c_r], blocked=True)
    else:
        left[c_l] = right[c_r] = rule.add(lhs[c_l])
        right[o_r] = result[c_o] = rule.add(rhs[o_r], blocked=whole)
    count = 1
    for i, (a, b, c) in enumerate(zip(space_l, space_r, space_o, strict=True)):
        stride, (low, high) = params["window_strides"][i], params["padding"][i]
        holes, spread = params["lhs_dilation"][i], params["rhs_dilation"][i]
        still = rhs[b] == stride == holes == 1 and low == high == 0
        left[a] = rule.add(lhs[a], blocked=not still)
        right[b] = rule.add(rhs[b], blocked=True)
        result[c] = left[a] if still else rule.add(out[c], blocked=True)
        count *= _taps(lhs[a], rhs[b], out[c], stride, low, holes, spread)
    rule.operands, rule.results = [left, right], [result]
    rule.flops = 2.0 * out[n_o] * out[c_o] * rhs[c_r] * count
    return rule


WINDOWS: dict[str, Rule] = dict.fromkeys(
    """reduce_window reduce_window_sum reduce_window_max reduce_window_min
    select_and_scatter select_and_scatter_add select_and_gather_add""".split(),
    reduce_window,
)
CONVOLUTIONS: dict[str, Rule] = {"conv_general_dilated": convolution}
