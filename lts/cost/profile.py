"""How an engine differs from the sum of its operators: one record per engine and year.

A profile multiplies operator times by class and adds what no operator shows: launches,
scheduling, hosts. One YAML file each in `profiles/`, written by
`python -m experiments.fit_profiles`; `middle` is their geometric middle, for engines
that were not measured.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[1] / "profiles"
MIDDLE = "middle"


@dataclass(frozen=True, kw_only=True)
class MemoryRule:
    """How many bytes of a GPU an engine gives to caches; a setting, never fitted.

    Attributes:
      fraction: of the memory (`of_free` False) or of what the weights leave (True).
      other_bytes: activations, graphs and buffers, taken off beside the weights.
      kept_output: share of the output length that a running request holds on average
        when the engine admits another one.
    """

    fraction: float = 0.9
    of_free: bool = False
    other_bytes: float = 3.0e9
    kept_output: float = 0.8

    def cache_bytes(self, hbm_bytes: float, weight_bytes: float) -> float:
        """Bytes of one GPU that caches may fill; at least 0."""
        if self.of_free:
            free = self.fraction * (hbm_bytes - weight_bytes - self.other_bytes)
        else:
            free = self.fraction * hbm_bytes - weight_bytes - self.other_bytes
        return max(free, 0.0)


MEMORY_RULES = {
    "trtllm": MemoryRule(of_free=True, other_bytes=2.5e9, kept_output=1.0),
    "vllm": MemoryRule(),
    "sglang": MemoryRule(),
}
"""Defaults of the engines: `kv_cache_free_gpu_memory_fraction` of TensorRT-LLM is of
what is free, `gpu_memory_utilization` of vLLM and `mem_fraction_static` of SGLang of
all. `other_bytes` and `kept_output` from published maximum-load measurements."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Scalars of one engine; the defaults are set by hand, for engines like the best.

    Attributes:
      gemm, attention, moe, all_reduce, dispatch: factors of the operator times.
      prefill: factor of the time that a prompt adds to running steps.
      layer_s: per layer and step.
      expert_layer_s: per layer with routed experts and step, on top: routing and
        sorting; more where experts are spread over ranks (`lts.cost.steady`).
      step_s, sequence_s: per step, and per sequence of the busiest rank in it.
      prompt_s: per prompt that joins a running step.
      handover_s: per sequence in flight and step of a pipeline, on top: what hosts
        pass on from stage to stage, one micro-batch after the other.
      host_s: per request before its prefill starts.
      alone: factor of a prompt's time by itself, for the time to first token.
      waiting: share of the running requests' prompts that a new one waits for.
      running: decode steps that it waits for.
      saturation_s: of a front end that 10,000 tokens/s keep busy; grows with the
        fourth power of their rate.
      memory: see `MemoryRule`.
      source, points, tpot_error, throughput_error, ttft_error: what it was fitted on,
        and the median errors of points that were held out; None where there were none.
    """

    name: str = "default"
    gemm: float = 1.0
    attention: float = 1.0
    moe: float = 1.0
    all_reduce: float = 1.0
    dispatch: float = 1.0
    prefill: float = 1.0
    layer_s: float = 1e-6
    expert_layer_s: float = 8e-6
    step_s: float = 0.8e-3
    sequence_s: float = 5e-6
    prompt_s: float = 0.1e-3
    handover_s: float = 20e-6
    host_s: float = 10e-3
    alone: float = 1.0
    waiting: float = 0.05
    running: float = 1.0
    saturation_s: float = 1e-3
    memory: MemoryRule = field(default_factory=MemoryRule)
    source: str = ""
    points: int = 0
    tpot_error: float | None = None
    throughput_error: float | None = None
    ttft_error: float | None = None

    def __post_init__(self) -> None:
        for name in SCALARS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(
                    f"profile {self.name!r}: {name} must be a positive number, got "
                    f"{value!r}"
                )


SCALARS = (
    "gemm",
    "attention",
    "moe",
    "all_reduce",
    "dispatch",
    "prefill",
    "layer_s",
    "expert_layer_s",
    "step_s",
    "sequence_s",
    "prompt_s",
    "handover_s",
    "host_s",
    "alone",
    "waiting",
    "running",
    "saturation_s",
)
"""Names of the fitted numbers; all positive, so that their middle is geometric."""


def names() -> tuple[str, ...]:
    """Profiles that come with the package, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load(name: str = MIDDLE) -> Profile:
    """A profile by name.

    Raises:
      ValueError: if there is none of that name.
    """
    if name not in names():
        raise ValueError(f"unknown profile {name!r}; there are: {', '.join(names())}")
    return from_dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))


def from_dict(data: Mapping) -> Profile:
    """A profile from the mapping that a file of `to_dict` holds.

    Raises:
      ValueError: if a field is unknown or a number out of range.
    """
    known = {found.name for found in fields(Profile)}
    if unknown := [name for name in data if name not in known]:
        raise ValueError(f"profile: unknown field {unknown[0]!r}")
    return Profile(**{**data, "memory": MemoryRule(**data.get("memory", {}))})


def to_dict(profile: Profile) -> dict:
    """Plain numbers and texts; `from_dict` gives an equal profile back."""
    return asdict(profile)
