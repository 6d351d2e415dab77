"""The benchmark suite: models, workloads, clusters, instances, and the core.

One place for the names that tests and experiments use. Weights and caches are in the
form that each model is published in: see `lts.models`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lts.hardware import Cluster
from lts.models import Decoder, load
from lts.workload import Workload

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "qwen3-32b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "kimi-k2",
    "moe-1.6t",
    "switch-c-2048",
)
"""Names in `lts.models`."""

WEIGHT_SHARE = 0.8
"""Share of a cluster's memory that weights may take for an instance to count."""

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

    def cluster_of(self, serving: str) -> Cluster:
        """The cluster to plan for: the instance's own.

        Two of it for pools where two copies of the weights have no room in one.
        """
        cluster = Cluster.parse(self.cluster)
        room = cluster.num_gpus * cluster.usable_bytes
        if serving != "pools" or 2 * weight_bytes(load(self.model)) <= room:
            return cluster
        return cluster.resized(2 * cluster.nodes, cluster.gpus_per_node)

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
        ("mixtral-8x22b", "h100:1x8", "chat"),
        ("qwen3-235b-a22b", "h100:2x8", "chat"),
        ("qwen3-235b-a22b", "h100:3x8", "chat"),
        ("deepseek-v3", "h100:2x8", "chat"),
        ("deepseek-v3", "h100:8x8", "chat-tight"),
        ("kimi-k2", "h100:8x8", "summarise"),
        ("moe-1.6t", "h100:8x8", "chat-tight"),
        ("moe-1.6t", "h100:128x8", "chat"),
        ("switch-c-2048", "h100:8x8", "chat"),
    )
)
"""Instances for results with many seeds; each colocated and as pools."""


def weight_bytes(model: Decoder) -> float:
    """Bytes of a model's weights and their scales, in the form it is published in."""

    def bits(dtype: Any) -> int:
        info = jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo
        return info(dtype).bits

    leaves = jax.tree.leaves(model.abstract_params())
    return sum(math.prod(leaf.shape) * bits(leaf.dtype) / 8 for leaf in leaves)


def instances() -> tuple[Instance, ...]:
    """Every model, cluster and workload whose weights fit in 80% of the memory."""
    found = []
    for model in MODELS:
        nbytes = weight_bytes(load(model))
        for name in CLUSTERS:
            cluster = Cluster.parse(name)
            if nbytes > WEIGHT_SHARE * cluster.num_gpus * cluster.chip.hbm_bytes:
                continue
            found += [
                Instance(model=model, cluster=name, workload=workload)
                for workload in WORKLOADS
            ]
    return tuple(found)
