"""What a plan is predicted to reach."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lts.cost.breakdown import Part


@dataclass(frozen=True, kw_only=True)
class ShapeMetrics:
    """What a plan reaches at one of the shapes that it is for.

    Attributes:
      name: `step`, `step#2`, ..., in the order of the calls.
      arguments: shapes of the arguments that differ, by path.
      step_time_s: of one call.
      alone_s: the least step time that was found for this shape alone; None if it was
        not searched (`lts.price`).
    """

    name: str
    arguments: Mapping[str, tuple[int, ...]]
    step_time_s: float
    alone_s: float | None = None

    @property
    def over_alone(self) -> float | None:
        """Step time over that of the best plan found for this shape alone."""
        return None if self.alone_s is None else self.step_time_s / self.alone_s

    def rank(self) -> tuple[float, float]:
        """What the worst shape has most of: loss by sharing, then time."""
        return self.over_alone or 0.0, self.step_time_s


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What a plan is predicted to reach; SI units, None where it has no meaning.

    Attributes:
      step_time_s: one call: of the function, or of one decode step (prefill only: of
        one prefill).
      ttft_s, tpot_s: time to first token, and per further token.
      kv_transfer_s: from prefill to decode instances, a part of `ttft_s`; None if they
        are no pools.
      tokens_per_s_per_gpu: generated (prefill only: read) tokens.
      concurrency: requests in flight.
      peak_bytes: of the fullest GPU; `weight_bytes` and `cache_bytes` are parts of it.
      error: relative error bar of the step time, from points held out of the fits: of
        its operators, or that of the engine's profile if it is larger.
      engine: profile of what serves a model; None for a function.
      breakdown: nodes and reshards with the time that each takes.
      shapes: of a function at several shapes, the step time at each; `step_time_s` is
        then their mean, and the breakdown that of the first.
    """

    step_time_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    kv_transfer_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    concurrency: int | None = None
    peak_bytes: float = 0.0
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    error: float | None = None
    engine: str | None = None
    breakdown: tuple[Part, ...] = ()
    shapes: tuple[ShapeMetrics, ...] = ()

    @property
    def worst_shape(self) -> ShapeMetrics | None:
        """The shape that loses most by sharing a plan; without `alone_s`, the slowest.

        None for one shape.
        """
        return max(self.shapes, key=ShapeMetrics.rank, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; see docs/schemas.md."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts = [
            {
                **dataclasses.asdict(p),
                "states": None if p.states is None else [*p.states],
            }
            for p in self.breakdown
        ]
        shapes = [
            {
                **dataclasses.asdict(shape),
                "arguments": {path: [*n] for path, n in shape.arguments.items()},
            }
            for shape in self.shapes
        ]
        worst = self.worst_shape
        return {
            **fields,
            "breakdown": parts,
            "shapes": shapes,
            "worst_shape": None if worst is None else worst.name,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Metrics":
        """The metrics that `to_dict` wrote."""
        parts = tuple(
            Part(**{**p, "states": None if p["states"] is None else tuple(p["states"])})
            for p in data["breakdown"]
        )
        shapes = tuple(
            ShapeMetrics(
                **{**s, "arguments": {p: tuple(n) for p, n in s["arguments"].items()}}
            )
            for s in data.get("shapes", ())
        )
        own = {k: v for k, v in data.items() if k != "worst_shape"}
        return cls(**{**own, "breakdown": parts, "shapes": shapes})
