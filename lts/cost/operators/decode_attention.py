"""Attention of one new token per sequence over a paged KV cache, calibrated.

Time is a sum of

    launch + (kernel^p + memory^p)^(1/p) + split + per sequence + per row of output

    kernel   one thread block per sequence and KV head (and 64 query heads of it), each
             with a fixed cost and a cost per block of 128 keys; with fewer blocks than
             SMs a sequence is split over at most `most_splits` of them (split KV)
    memory   keys, values, queries and output, at the rate of the L2 cache or of HBM
    split    the partial results are combined: fixed, and by the logarithm of the length

Batches up to 512 are scheduled by a kernel that may split them and pay for that per
sequence and head; larger ones are not (FlashAttention-3 stops at 992 sequences: 512 is
the largest measured batch below). The time is the longer of the unsplit one and the
one that the largest split batch takes.

Source: packing of a group's heads, split KV and the limit of 992 sequences are those of
FlashAttention-3 (`hopper/heuristics.h` and `hopper/flash_api.cpp` of
Dao-AILab/flash-attention). FlashAttention-2 (`csrc/flash_attn/flash_api.cpp`) instead
transposes queries and output of grouped heads in kernels of their own (`swap_s`), and
splits only grouped heads: ungrouped ones have their own fit (`decode_attention_key`).
The p-norm and what stays in the L2 cache were chosen by fits on rows of
`lts.calibrate.tables.attention`.
"""

from collections.abc import Container

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Values
from lts.cost.operators.prefill_attention import arithmetic_peak, l2_miss
from lts.hardware import Chip

_HEADS = 64.0  # of one group in a tile
_KEYS = 128.0  # in a block
_MOST_SCHEDULED = 512.0
_IO_BYTES = 2.0  # of an element of queries and output


def decode_attention_key(
    kv_dtype: str, n_heads: float, n_kv_heads: float, fits: Container[str]
) -> str:
    """Key of the fit for stored keys of `kv_dtype`; ungrouped heads may have their own.

    >>> decode_attention_key("bfloat16", 8, 8, {"decode_attention/bfloat16"})
    'decode_attention/bfloat16'
    """
    key = f"decode_attention/{kv_dtype}"
    ungrouped = f"{key}_mha"
    return ungrouped if n_heads <= n_kv_heads and ungrouped in fits else key


def decode_attention_time_s(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    values: Values,
    chip: Chip,
) -> np.ndarray:
    """Seconds of one layer's attention in a decode step, with the KV-cache write.

    Args:
      batch: sequences.
      kv_len: tokens of each that are attended, the new one included.
      n_heads, n_kv_heads: on this device, at least one of each.
      head_dim: elements.
      window: tokens that a token attends at most; 0: all.
      kv_bytes: per stored element, 2 or 1.
      values: fitted parameters (`DECODE_ATTENTION.parameters`).
      chip: its specification; without `l2_bytes` to speak of, caches are cold.

    Monotone in every size but the window, whose kernel costs more than it saves in
    caches that are barely longer. Never below `decode_attention_bound_s`.
    """
    rest = (kv_len, n_heads, n_kv_heads, head_dim, window, kv_bytes)
    few = np.minimum(batch, _MOST_SCHEDULED)
    dims = head_dim / 128
    scheduled_s = few * (
        values["scheduled_s"] + values["scheduled_head_s"] * n_heads * dims
    )
    return np.maximum(
        np.maximum(
            _unsplit_s(batch, *rest, values=values, chip=chip),
            _unsplit_s(few, *rest, values=values, chip=chip) + scheduled_s,
        ),
        decode_attention_bound_s(batch, *rest, chip=chip),
    )


def _unsplit_s(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    values: Values,
    chip: Chip,
) -> np.ndarray:
    attended = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    cut = np.clip((kv_len - attended) / _KEYS, 0, 1)
    second = np.clip(attended / _KEYS - 1, 0, 1)
    blocks = np.maximum(1, attended / _KEYS)
    dims = head_dim / 128
    waves = batch * np.maximum(n_kv_heads, n_heads / _HEADS) / chip.num_sms

    kernel_s = (
        np.maximum(1, waves) * values["task_s"] * dims ** values["task_power"]
        + waves * (second * values["second_s"] * dims + cut * values["window_s"])
        + np.maximum(waves, 1 / values["most_splits"])
        * blocks
        * (values["block_s"] * dims ** values["block_power"] * kv_bytes / 2)
    )
    nbytes = _bytes(batch, kv_len, n_heads, n_kv_heads, head_dim, window, kv_bytes)
    cached_s = 1 / (values["l2_bytes_per_s"] * chip.num_sms)
    missed_s = 1 / (values["hbm_efficiency"] * chip.hbm_bandwidth_bytes_per_s)
    # bytes from HBM pass through the L2 cache too
    later_s = l2_miss(nbytes, chip, values) * max(missed_s - cached_s, 0)
    memory_s = nbytes * (cached_s + later_s)
    p = values["p"]
    grouped = np.clip(batch - 1, 0, 1) * np.clip(n_kv_heads - 1, 0, 1)
    return (
        values["launch_s"]
        + values["launch_per_128_dim_s"] * dims
        + (kernel_s**p + memory_s**p) ** (1 / p)
        + values["split_s"] * second
        + values["window_split_s"] * cut
        + values["log_s"] * np.log2(blocks)
        + values["swap_s"] * grouped
        + batch * (values["sequence_s"] + values["row_s"] * n_heads * dims)
    )


def decode_attention_bound_s(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    chip: Chip,
) -> np.ndarray:
    """Arithmetic of the attended tokens, or bytes beyond the L2 cache; seconds."""
    attended = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    nbytes = _bytes(batch, kv_len, n_heads, n_kv_heads, head_dim, window, kv_bytes)
    return np.maximum(
        4 * batch * n_heads * head_dim * attended / arithmetic_peak(kv_bytes, chip),
        np.maximum(nbytes - chip.l2_bytes, 0) / chip.hbm_bandwidth_bytes_per_s,
    )


def _bytes(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
) -> np.ndarray:
    """Keys and values read, the new ones written, queries and output."""
    attended = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    stored = n_kv_heads * (attended + 1) * kv_bytes
    return 2 * batch * head_dim * (stored + n_heads * _IO_BYTES)


DECODE_ATTENTION = Operator(
    name="decode_attention",
    parameters=(
        Parameter(name="launch_s", start=7.84e-6, low=1e-6, high=3e-5),
        Parameter(name="launch_per_128_dim_s", start=5.87e-7, low=1e-9, high=1e-5),
        Parameter(name="task_s", start=2.86e-6, low=1e-7, high=1e-5),
        Parameter(name="task_power", start=0.262, low=0, high=2),
        Parameter(name="second_s", start=5.4e-7, low=1e-8, high=1e-5),
        Parameter(name="window_s", start=1.43e-6, low=1e-7, high=1e-5),
        Parameter(name="block_s", start=3.8e-7, low=1e-8, high=1e-5),
        Parameter(name="block_power", start=1.02, low=0, high=2),
        Parameter(name="most_splits", start=16.2, low=1, high=128),
        Parameter(name="l2_start", start=0.67, low=0.05, high=1),
        Parameter(name="l2_width", start=0.11, low=0.1, high=3),
        Parameter(name="hbm_efficiency", start=0.947, low=0.5, high=1),
        Parameter(name="l2_bytes_per_s", start=5.4e10, low=1e10, high=3e11),
        Parameter(name="p", start=1.6, low=1, high=8),
        Parameter(name="split_s", start=7.4e-7, low=1e-8, high=1e-5),
        Parameter(name="window_split_s", start=2.8e-6, low=1e-8, high=1e-5),
        Parameter(name="log_s", start=5.5e-7, low=1e-9, high=5e-6),
        Parameter(name="swap_s", start=2.1e-7, low=1e-9, high=2e-5),
        Parameter(name="sequence_s", start=7.6e-9, low=1e-11, high=1e-7),
        Parameter(name="row_s", start=2.2e-11, low=1e-12, high=1e-8),
        Parameter(name="scheduled_s", start=1.19e-8, low=1e-11, high=1e-7),
        Parameter(name="scheduled_head_s", start=2.87e-10, low=1e-12, high=1e-8),
    ),
    time_s=lambda sizes, values, chip: decode_attention_time_s(
        **sizes, values=values, chip=chip
    ),
    bound_s=lambda sizes, chip: decode_attention_bound_s(**sizes, chip=chip),
)
