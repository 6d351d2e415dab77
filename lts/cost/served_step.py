"""What a step of serving is made of: its kinds of work, forms, layout and sequences."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

Size = np.ndarray | float

CLASSES: tuple[str, ...] = (
    "gemm",
    "attention",
    "moe",
    "all_reduce",
    "dispatch",
    "lm_head",
    "elementwise",
)
"""Kinds of work that an engine's profile may speed up or slow down by themselves."""

ACTIVATION_BYTES = 2  # bfloat16 or float16, in every engine
STATE_BYTES = 4  # of a linear layer's state


class Kernels(Protocol):
    """Times of single operators on one GPU, seconds; all sizes broadcast."""

    def gemm(self, m: Size, n: Size, k: Size, form: str) -> np.ndarray:
        """`[m, k] @ [k, n]`; `form` of the weights, as in `Precision`."""
        ...

    def prefill_attention(
        self,
        batch: Size,
        length: Size,
        heads: float,
        kv_heads: float,
        head_dim: int,
        window: int | None,
        cache: str,
    ) -> np.ndarray:
        """Causal attention of whole prompts, with the write of the cache."""
        ...

    def decode_attention(
        self,
        batch: Size,
        context: Size,
        heads: float,
        kv_heads: float,
        head_dim: int,
        window: int | None,
        cache: str,
    ) -> np.ndarray:
        """One new token per sequence, `context` positions each."""
        ...

    def latent_attention(
        self, phase: str, batch: Size, length: Size, heads: float, cache: str
    ) -> np.ndarray:
        """MLA; `length` of the prompts (prefill) or the context (decode)."""
        ...

    def experts(
        self,
        tokens: Size,
        hidden: int,
        size: int,
        top_k: int,
        experts: int,
        tensor_ways: int,
        expert_ways: int,
        form: str,
    ) -> np.ndarray:
        """The work of one rank when `tokens` of all ranks are routed."""
        ...

    def collective(
        self, kind: str, nbytes: Size, inside: int, across: int, custom: bool
    ) -> np.ndarray:
        """Among `inside` GPUs of each of `across` nodes.

        Bytes of the array that every GPU ends with (of a reduce_scatter: starts with);
        `custom`: engines have a kernel of their own.
        """
        ...

    def pass_on(self, nbytes: Size, across: bool) -> np.ndarray:
        """From one GPU to another."""
        ...

    def elementwise(self, nbytes: Size) -> np.ndarray:
        """Bytes read and written by kernels that do little arithmetic, per launch."""
        ...


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Forms of the weights, and of the cache.

    Forms: "bfloat16", "fp8" (a scale per matrix or channel), "fp8_block", "int4",
    "fp4", "w8" (8-bit weights, arithmetic in bfloat16).
    """

    attention: str = "bfloat16"
    ffn: str = "bfloat16"
    experts: str = "bfloat16"
    cache: str = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of one server.

    Attributes:
      tp, dp: of attention: tensor parallel ways of a replica, and replicas; experts lie
        over all of them.
      pp: pipeline stages.
      ep: ways that whole experts are spread over; the rest of `tp * dp` splits each.
      cp: ranks of a tensor-parallel group that share the decode cache by positions.
      gpus_per_node: neighbours of one switch.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    gpus_per_node: int = 8

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.dp

    @property
    def num_gpus(self) -> int:
        """GPUs of the server."""
        return self.stage_gpus * self.pp

    def group(self, ways: int, stride: int) -> tuple[int, int]:
        """GPUs inside each node, and nodes, of `ways` ranks that lie `stride` apart."""
        inside = max(1, min(ways, self.gpus_per_node // stride))
        return inside, -(-ways // inside)

    @property
    def expert_tensor_ways(self) -> int:
        """Ways that one expert is split over."""
        return max(1, self.stage_gpus // self.ep)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is in a step of one server: all broadcast.

    Attributes:
      sequences: that decode, over all attention replicas.
      context: positions that each attends to.
      prompts: read in the step, over all replicas.
      prompt_len: tokens of each.
    """

    sequences: Size = 0.0
    context: Size = 0.0
    prompts: Size = 0.0
    prompt_len: Size = 0.0


def per_rank(count: Size, replicas: int) -> np.ndarray:
    """Sequences (or prompts) of the busiest of `replicas`: with fewer, some idle.

    >>> per_rank(np.array([0, 1, 4, 12]), 8).tolist()
    [0.0, 1.0, 1.0, 1.5]
    """
    count = np.asarray(count, float)
    return np.maximum(count / replicas, np.minimum(count, 1.0))
