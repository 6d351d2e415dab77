"""The benchmark suite: models, workloads, clusters, and the core instances.

One place for the names that tests and experiments use. Dense models so far.
"""

from dataclasses import dataclass

from lts.workload import Workload

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b")
"""Names in `lts.models`; bfloat16 weights and KV cache."""


WORKLOADS = {
    "chat": Workload(1024, 1024, ttft_ms=2e3, tpot_ms=50),
    "chat-tight": Workload(1024, 1024, ttft_ms=2e3, tpot_ms=20),
    "summarise": Workload(8192, 1024, ttft_ms=4e3, tpot_ms=50),
    "long": Workload(131072, 1024, ttft_ms=6e4, tpot_ms=50),
    "prefill": Workload(4096, 0, ttft_ms=2e3),
}

CLUSTERS = ("h100:1x8", "h100:2x8", "h100:3x8", "h100:8x8", "h100:32x8", "h100:128x8")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A model under a workload on a cluster, each by name."""

    model: str
    cluster: str
    workload: str

    def __str__(self) -> str:
        return f"{self.model} {self.cluster} {self.workload}"


CORE = tuple(
    Instance(model=model, cluster=cluster, workload=workload)
    for model, cluster, workload in (
        ("llama-3.1-8b", "h100:1x8", "chat"),
        ("llama-3.1-70b", "h100:1x8", "chat"),
        ("llama-3.1-70b", "h100:2x8", "summarise"),
        ("llama-3.1-405b", "h100:2x8", "chat"),
        ("qwen3-32b", "h100:1x8", "long"),
    )
)
"""Instances for results with many seeds."""
