"""Multi-head latent attention on one device (DeepSeek's), calibrated.

The cache holds one latent of 512 + 64 (rope) elements per token for all heads. New
tokens of a prompt attend keys (128 + 64 per head) and values (128 per head) that were
expanded from it; a decode step attends the latent itself, with queries and outputs of
512 per head, so that keys are read once for all heads. The projections are not part of
either. Both are launch + kernel and memory, p-normed, as in `prefill_attention` and
`decode_attention`; the context kernel works through its tiles without a split, its
longest tile on top.

Source: sizes of DeepSeek-V2 (arXiv:2405.04434, section 2.1); the sums were chosen by
fits on measured rows (`lts.calibrate.tables.mla`).
"""

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Values
from lts.cost.operators.prefill_attention import arithmetic_peak, l2_miss
from lts.hardware import Chip

LATENT_DIM = 512.0
ROPE_DIM = 64.0
HEAD_DIM = 128.0  # of keys without rope, and of values
_STORED = LATENT_DIM + ROPE_DIM
_KEY_AND_VALUE = 2 * HEAD_DIM + ROPE_DIM
_ROWS = 64.0  # of queries in a tile
_KEYS = 128.0  # in a block of a decode step
_IO_BYTES = 2.0
_RAMP_TOKENS = 128.0


def mla_context_time_s(
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    values: Values,
    chip: Chip,
) -> np.ndarray:
    """Seconds of one layer's causal attention over new tokens.

    Args:
      batch: sequences.
      q_len: new tokens of each.
      kv_len: tokens that the last one attends; only `kv_len == q_len` was measured.
      n_heads: on this device.
      kv_bytes: per stored element, 2 or 1; with 1 the kernel works in float8, and the
        time includes that of quantising its operands.
      values: fitted parameters (`MLA_CONTEXT.parameters`).
      chip: its specification; without `l2_bytes` to speak of, caches are cold.

    Monotone in every size, and never below `mla_context_bound_s`.
    """
    waves = batch * n_heads * np.maximum(1, q_len / _ROWS) / chip.num_sms
    mean = kv_len - q_len / 2 + np.minimum(q_len, _ROWS) / 2
    column_s = (
        2 * _ROWS * _KEY_AND_VALUE * chip.num_sms
        / (chip.peak("bfloat16") * values["mm_efficiency"])
    )  # fmt: skip
    kernel_s = kv_len * column_s + waves * (values["tile_s"] + mean * column_s)

    nbytes = _context_bytes(batch, q_len, kv_len, n_heads, kv_bytes)
    missed = nbytes * l2_miss(nbytes, chip, values)
    memory_s = missed / (values["hbm_efficiency"] * chip.hbm_bandwidth_bytes_per_s)
    p = values["p"]
    first = np.clip(np.log2(np.maximum(q_len, 1)) / np.log2(_RAMP_TOKENS), 0, 1)
    time_s = (
        values["launch_s"]
        + values["prefill_s"] * first
        + (kernel_s**p + memory_s**p) ** (1 / p)
    )
    return np.maximum(
        time_s, mla_context_bound_s(batch, q_len, kv_len, n_heads, kv_bytes, chip=chip)
    )


def mla_context_bound_s(
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    chip: Chip,
) -> np.ndarray:
    """Arithmetic of the attended pairs, or bytes beyond the L2 cache; seconds."""
    pairs = batch * n_heads * q_len * (kv_len - q_len / 2)
    nbytes = _context_bytes(batch, q_len, kv_len, n_heads, kv_bytes)
    return np.maximum(
        2 * _KEY_AND_VALUE * pairs / arithmetic_peak(kv_bytes, chip),
        np.maximum(nbytes - chip.l2_bytes, 0) / chip.hbm_bandwidth_bytes_per_s,
    )


def _context_bytes(
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    kv_bytes: np.ndarray,
) -> np.ndarray:
    """Queries, output, expanded keys and values, and the latents stored."""
    per_head = (q_len + kv_len) * _KEY_AND_VALUE * _IO_BYTES
    return batch * (n_heads * per_head + q_len * _STORED * kv_bytes)


def mla_generation_time_s(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    values: Values,
    chip: Chip,
) -> np.ndarray:
    """Seconds of one layer's attention in a decode step.

    Args:
      batch: sequences.
      kv_len: tokens of each that are attended, the new one included.
      n_heads: on this device.
      kv_bytes: per stored element, 2 or 1.
      values: fitted parameters (`MLA_GENERATION.parameters`).
      chip: its specification; without `l2_bytes` to speak of, caches are cold.

    Monotone in every size, and never below `mla_generation_bound_s`.
    """
    waves = batch * np.maximum(1, n_heads / _ROWS) / chip.num_sms
    blocks = np.maximum(1, kv_len / _KEYS)
    second = np.clip(kv_len / _KEYS - 1, 0, 1)
    kernel_s = (
        np.maximum(1, waves) * values["task_s"]
        + waves * second * values["second_s"]
        + np.maximum(waves, 1 / values["most_splits"]) * blocks * values["block_s"]
    )
    nbytes = _generation_bytes(batch, kv_len, n_heads, kv_bytes)
    missed = nbytes * l2_miss(nbytes, chip, values)
    memory_s = missed / (values["hbm_efficiency"] * chip.hbm_bandwidth_bytes_per_s)
    product_s = _generation_flops(batch, kv_len, n_heads) / (
        arithmetic_peak(kv_bytes, chip) * values["mm_efficiency"]
    )
    p = values["p"]
    time_s = (
        values["launch_s"]
        + (kernel_s**p + memory_s**p + product_s**p) ** (1 / p)
        + values["log_s"] * np.log2(blocks)
        + n_heads * (values["head_s"] + batch * values["row_s"])
    )
    return np.maximum(
        time_s, mla_generation_bound_s(batch, kv_len, n_heads, kv_bytes, chip=chip)
    )


def mla_generation_bound_s(
    batch: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    chip: Chip,
) -> np.ndarray:
    """Arithmetic of the attended tokens, or bytes beyond the L2 cache; seconds."""
    nbytes = _generation_bytes(batch, kv_len, n_heads, kv_bytes)
    return np.maximum(
        _generation_flops(batch, kv_len, n_heads) / arithmetic_peak(kv_bytes, chip),
        np.maximum(nbytes - chip.l2_bytes, 0) / chip.hbm_bandwidth_bytes_per_s,
    )


def _generation_flops(
    batch: np.ndarray, kv_len: np.ndarray, n_heads: np.ndarray
) -> np.ndarray:
    return 2 * batch * n_heads * kv_len * (_STORED + LATENT_DIM)


def _generation_bytes(
    batch: np.ndarray, kv_len: np.ndarray, n_heads: np.ndarray, kv_bytes: np.ndarray
) -> np.ndarray:
    """Latents read and the new one written, queries and output."""
    heads = n_heads * (_STORED + LATENT_DIM) * _IO_BYTES
    return batch * ((kv_len + 1) * _STORED * kv_bytes + heads)


MLA_CONTEXT = Operator(
    name="mla_context",
    parameters=(
        Parameter(name="launch_s", start=1.44e-5, low=1e-6, high=5e-5),
        Parameter(name="prefill_s", start=1.78e-6, low=1e-8, high=2e-5),
        Parameter(name="tile_s", start=3.4e-6, low=1e-8, high=1e-5),
        Parameter(name="mm_efficiency", start=0.649, low=0.3, high=1),
        Parameter(name="hbm_efficiency", start=0.606, low=0.1, high=1),
        Parameter(name="l2_start", start=0.06, low=0.05, high=1),
        Parameter(name="l2_width", start=0.53, low=0.1, high=3),
        Parameter(name="p", start=7, low=1, high=8),
    ),
    time_s=lambda sizes, values, chip: mla_context_time_s(
        **sizes, values=values, chip=chip
    ),
    bound_s=lambda sizes, chip: mla_context_bound_s(**sizes, chip=chip),
)
MLA_GENERATION = Operator(
    name="mla_generation",
    parameters=(
        Parameter(name="launch_s", start=8.8e-6, low=1e-6, high=5e-5),
        Parameter(name="task_s", start=4.1e-6, low=1e-7, high=2e-5),
        Parameter(name="second_s", start=5.3e-6, low=1e-8, high=2e-5),
        Parameter(name="block_s", start=2.1e-6, low=1e-8, high=1e-5),
        Parameter(name="most_splits", start=71, low=1, high=132),
        Parameter(name="mm_efficiency", start=0.98, low=0.2, high=1),
        Parameter(name="hbm_efficiency", start=0.934, low=0.3, high=1),
        Parameter(name="l2_start", start=0.11, low=0.05, high=1),
        Parameter(name="l2_width", start=0.7, low=0.1, high=3),
        Parameter(name="p", start=2.9, low=1, high=8),
        Parameter(name="log_s", start=1.08e-6, low=1e-9, high=5e-6),
        Parameter(name="head_s", start=1.8e-8, low=1e-11, high=1e-7),
        Parameter(name="row_s", start=8.1e-10, low=1e-12, high=1e-8),
    ),
    time_s=lambda sizes, values, chip: mla_generation_time_s(
        **sizes, values=values, chip=chip
    ),
    bound_s=lambda sizes, chip: mla_generation_bound_s(**sizes, chip=chip),
)
