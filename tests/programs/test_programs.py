"""Programs as other projects write them: plan at a real size, run at a tiny one.

Each program is traced and searched at a width at which sharding pays, from abstract
parameters; XLA compiles some of the plans at that width; and the program's tiny twin
must give on 8 devices, under the same plan, what it gives on one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest

import lts
from tests.programs import (
    by_hand,
    diffusion,
    linen_models,
    nnx_models,
    state_space,
    training,
)
from tests.programs.judge import (
    assert_compiles_as_predicted,
    assert_same_outputs,
    searched,
)
from tests.programs.program import Program

# Sums in another order, as a part of the largest element.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program and what is checked of its plan.

    Attributes:
      make: builds it from `args`, tiny, or with the sizes `wide`.
      weighty: reading its parameters takes most of the time, so they are sharded.
      carried: pairs (argument, result) of state that must keep its specs, by number.
      compiled: whether XLA compiles the wide plan, which takes seconds.
      dtype: of its parameters.
    """

    make: Callable[..., Program]
    args: tuple[Any, ...] = ()
    wide: dict[str, Any] = field(default_factory=lambda: {"features": 4096})
    method: str = "annealing"
    budget: int = 200
    weighty: bool = False
    carried: tuple[tuple[int, int], ...] = ()
    compiled: bool = False
    dtype: str = "float32"


LINEN = {"make": linen_models.transformer, "weighty": True}
TRAINING = {"make": training.step, "weighty": True, "carried": ((0, 0), (1, 1))}
UNET = {"make": diffusion.unet, "wide": {"widths": (512, 1024)}}
CASES = {
    "linen": Case(**LINEN, args=("loop",)),
    "linen, scanned": Case(**LINEN, args=("scan",), compiled=True),
    "linen, scanned, bfloat16": Case(
        **LINEN, args=("scan", "bfloat16"), dtype="bfloat16"
    ),
    "linen, rematerialised": Case(**LINEN, args=("remat",)),
    "nnx": Case(make=nnx_models.transformer, weighty=True),
    "nnx, decoding": Case(
        make=nnx_models.decode_step,
        method="random",
        weighty=True,
        carried=((1, 1),),
        compiled=True,
    ),
    "training": Case(**TRAINING, args=("loop", 1), compiled=True),
    "training, scanned": Case(**TRAINING, args=("scan", 2)),
    "training, rematerialised": Case(**TRAINING, args=("remat", 1)),
    "U-Net, resizing": Case(**UNET, args=("resize",)),
    "U-Net, transposed": Case(**UNET, args=("transpose",)),
    "Mamba, associative": Case(make=state_space.mamba, args=("associative",)),
    "Mamba, sequential": Case(make=state_space.mamba, args=("sequential",)),
    "RG-LRU, associative": Case(make=state_space.rg_lru, args=("associative",)),
    "RG-LRU, sequential": Case(make=state_space.rg_lru, args=("sequential",)),
    "experts": Case(
        make=by_hand.experts,
        wide={"features": 4096, "hidden": 8192},
        weighty=True,
        compiled=True,
    ),
    "vision transformer": Case(make=by_hand.vision_transformer),
    "sampling": Case(make=by_hand.sampling),
    "beam search": Case(make=by_hand.beam_search),
}


def sharded_paths(plan: lts.Plan) -> set[str]:
    """Arguments that some mesh axis shards."""
    specs = plan.phase("step").arguments
    return {path for path, spec in specs.items() if any(spec)}


def sharded_part(plan: lts.Plan, params: Any) -> float:
    """Part of the parameters' elements that are in sharded arrays."""
    leaves = jax.tree.leaves(params)
    paths = list(plan.phase("step").arguments)[: len(leaves)]
    sizes = dict(zip(paths, (leaf.size for leaf in leaves), strict=True))
    sharded = sharded_paths(plan)
    return sum(sizes[p] for p in paths if p in sharded) / sum(sizes.values())


@pytest.mark.parametrize("name", CASES)
def test_a_program_runs_under_its_plan_as_it_runs_alone(name):
    case = CASES[name]
    wide, tiny = case.make(*case.args, **case.wide), case.make(*case.args)
    plan = searched(wide, method=case.method, budget=case.budget)
    assert sharded_paths(plan)
    assert 0 < plan.objective <= plan.bound
    if case.weighty:
        assert sharded_part(plan, wide.args[0]) > 0.5
    for argument, result in case.carried:
        assert plan.in_specs[argument] == plan.out_specs[result]
    assert_same_outputs(plan, tiny, TOLERANCE[case.dtype])
    if case.compiled:
        assert_compiles_as_predicted(plan, wide)
