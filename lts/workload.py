"""What is asked of a served model: lengths of a request, latency limits, load."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Workload:
    """Requests of one shape, and the limits that serving them must keep.

    Args:
      input_len: tokens of a prompt.
      output_len: tokens generated per request; 0 asks for prefill only.
      ttft_ms: limit on the time to first token, milliseconds; None is no limit.
      tpot_ms: limit on the time per further token, milliseconds; None is no limit.
      concurrency: requests in flight over the whole cluster; None lets the search find
        the number that serves most tokens within the limits.
      routing_skew: of a mixture of experts, tokens that the busiest device receives
        over the mean of all; 1 is even routing.

    Raises:
      TypeError: if a field is of the wrong kind (`True` is no number here).
      ValueError: if a length, a limit or the concurrency is out of range.

    >>> Workload(input_len=2048, output_len=256, tpot_ms=50).tpot_s
    0.05
    """

    input_len: int
    output_len: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    concurrency: int | None = None
    routing_skew: float = 1.0

    def __post_init__(self) -> None:
        _check_count("input_len", self.input_len, at_least=1)
        _check_count("output_len", self.output_len, at_least=0)
        if self.concurrency is not None:
            _check_count("concurrency", self.concurrency, at_least=1)
        _check_limit("ttft_ms", self.ttft_ms)
        _check_limit("tpot_ms", self.tpot_ms)
        _check_skew(self.routing_skew)

    @property
    def ttft_s(self) -> float | None:
        """Limit on the time to first token, seconds, or None."""
        return None if self.ttft_ms is None else self.ttft_ms / 1e3

    @property
    def tpot_s(self) -> float | None:
        """Limit on the time per further token, seconds, or None."""
        return None if self.tpot_ms is None else self.tpot_ms / 1e3

    @property
    def context_len(self) -> int:
        """Tokens of a finished request: the longest that a KV cache must hold."""
        return self.input_len + self.output_len

    @property
    def prefill_only(self) -> bool:
        """Whether nothing is generated, so that there is no decode phase."""
        return self.output_len == 0

    def to_dict(self) -> dict[str, Any]:
        """Field names to plain numbers or None; `from_dict` gives an equal workload."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Workload":
        """The workload that `to_dict` wrote.

        Raises:
          ValueError: if a field is unknown or `input_len` is missing.
          TypeError: if a field is of the wrong kind.
        """
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise ValueError(
                f"workload: unknown field {unknown[0]!r}; known: {', '.join(known)}"
            )
        if "input_len" not in data:
            raise ValueError("workload: field 'input_len' is missing")
        return cls(**data)


def _check_count(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"workload: {name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"workload: {name} must be at least {at_least}, got {value}")


def _check_limit(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"workload: {name} must be a number or None, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"workload: {name} must be a positive number of milliseconds, got {value}; "
            "leave it out (None) for no limit"
        )


def _check_skew(value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"workload: routing_skew must be a number, got {value!r}")
    if not (math.isfinite(value) and value >= 1):
        raise ValueError(f"workload: routing_skew must be at least 1, got {value}")
