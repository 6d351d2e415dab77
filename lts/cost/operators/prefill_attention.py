"""Causal attention of new tokens over a paged KV cache (FlashAttention), calibrated.

Time is a sum of what one layer's attention does one after another:

    launch + write of the new keys and values into the cache
           + (kernel^q + memory^q)^(1/q)

    kernel   tiles of 128 query rows, each with a fixed cost and a cost per key column
             that it attends: the chip's work over its SMs, p-normed with the longest
             tile, which a kernel with split KV divides while SMs are idle
    memory   queries, keys, values and output that the L2 cache does not hold
    write    one thread block per token: by threads per token, or by bytes

A chunk of `q_len` new tokens after a prefix attends `q_len * (kv_len - q_len / 2)`
pairs. Only `q_len == kv_len` was measured: with a prefix the same parameters are used
for the larger number of pairs.

Source: the packing of a group's heads into one tile and the split are those of
FlashAttention-3 (`hopper/heuristics.h` of Dao-AILab/flash-attention; FlashAttention-2
does neither); blocks of at most 512 threads are vLLM's `reshape_and_cache_flash`. The
sums and p-norms were chosen by fits on rows of `lts.calibrate.tables.attention`.
"""

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Values
from lts.hardware import Chip

_ROWS = 128.0  # of queries in a tile
_WRITE_THREADS = 512.0
_IO_BYTES = 2.0  # of an element of queries, output, and keys before they are stored
_SOFTMAX_SHARPNESS = 3.0
_RAMP_TOKENS = 128.0
_THROTTLE_S = 4.0e-3


def prefill_attention_time_s(
    batch: np.ndarray,
    q_len: np.ndarray,
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
    """Seconds of one layer's attention over new tokens, with their KV-cache write.

    Args:
      batch: sequences.
      q_len: new tokens of each.
      kv_len: tokens that the last one attends, itself included; at least `q_len`.
      n_heads, n_kv_heads: on this device.
      head_dim: elements.
      window: tokens that a token attends at most; 0: all.
      kv_bytes: per stored element, 2 or 1.
      values: fitted parameters (`PREFILL_ATTENTION.parameters`).
      chip: its specification; without `l2_bytes` to speak of, caches are cold.

    Monotone in every size but the window, and never below `prefill_attention_bound_s`.
    """
    sizes = (batch, q_len, kv_len, n_heads, n_kv_heads, head_dim, window, kv_bytes)
    sms = chip.num_sms
    bandwidth = chip.hbm_bandwidth_bytes_per_s
    reach = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    pairs = _pairs(q_len, kv_len, reach)

    # a tile holds rows of all heads of a group (packed), or of one head only
    alone = np.clip((q_len - 1) / (values["unpacked_tokens"] - 1), 0, 1)
    tiles = batch * np.maximum(
        np.maximum(n_kv_heads, n_heads * q_len / _ROWS),
        n_heads * alone * np.maximum(1, q_len / _ROWS),
    )
    columns = values["block_columns"]
    edge = columns / 2 + np.clip((kv_len - reach) / _ROWS, 0, 1) * (
        values["window_edge"] * _ROWS
    )
    mean = np.maximum(columns, pairs / q_len + np.minimum(q_len, _ROWS) / 2 + edge)
    most = np.maximum(columns, reach + edge)
    product_s = 4 * head_dim * sms / (chip.peak("bfloat16") * values["mm_efficiency"])
    column_s = _ROWS * _p_norm(product_s, values["pair_s"], _SOFTMAX_SHARPNESS)
    waves = tiles / sms
    kernel_s = _p_norm(
        values["tile_s"] + np.minimum(1, waves) ** values["split"] * most * column_s,
        waves * (values["tile_s"] + mean * column_s),
        values["kernel_p"],
    )

    nbytes = _kernel_bytes(*sizes)
    missed = nbytes * l2_miss(nbytes, chip, values)
    memory_s = missed / (values["hbm_efficiency"] * bandwidth)

    width = n_kv_heads * head_dim
    tokens = batch * q_len
    threads_s = (
        tokens
        / sms
        * values["write_s"]
        * (np.minimum(width, _WRITE_THREADS) / _WRITE_THREADS) ** values["write_power"]
    )
    write_s = np.hypot(
        threads_s, 2 * tokens * width * (_IO_BYTES + kv_bytes) / bandwidth
    )

    work_s = _p_norm(kernel_s, memory_s, values["memory_p"]) + write_s
    # the clock falls when the chip is busy for long
    work_s = work_s * (
        1
        + values["throttle"]
        * np.clip(np.log2(np.maximum(work_s, _THROTTLE_S) / _THROTTLE_S), 0, 1)
    )
    first = np.clip(np.log2(np.maximum(q_len, 1)) / np.log2(_RAMP_TOKENS), 0, 1)
    fixed_s = (
        values["launch_s"]
        + values["launch_per_128_dim_s"] * head_dim / 128
        + values["prefill_s"] * first
        + values["sequence_s"] * batch
    )
    return np.maximum(fixed_s + work_s, prefill_attention_bound_s(*sizes, chip=chip))


def prefill_attention_bound_s(
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
    *,
    chip: Chip,
) -> np.ndarray:
    """Arithmetic of the attended pairs, or bytes beyond the L2 cache; seconds."""
    reach = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    pairs = batch * n_heads * _pairs(q_len, kv_len, reach)
    nbytes = _kernel_bytes(
        batch, q_len, kv_len, n_heads, n_kv_heads, head_dim, window, kv_bytes
    )
    return np.maximum(
        4 * head_dim * pairs / arithmetic_peak(kv_bytes, chip),
        np.maximum(nbytes - chip.l2_bytes, 0) / chip.hbm_bandwidth_bytes_per_s,
    )


def arithmetic_peak(kv_bytes: np.ndarray, chip: Chip) -> np.ndarray:
    """FLOP/s; with float8 keys the kernel may multiply in float8, if the chip can."""
    low = dict(chip.peak_flops_per_s).get("float8_e4m3fn", chip.peak("bfloat16"))
    return np.where(kv_bytes < 2, low, chip.peak("bfloat16"))


def l2_miss(nbytes: np.ndarray, chip: Chip, values: Values) -> np.ndarray:
    """Share of `nbytes`, used once per call, that comes from HBM; 0 to 1.

    None while it fits `l2_start` of the L2 cache, all from `l2_width` caches more.
    """
    return np.clip(
        (nbytes / chip.l2_bytes - values["l2_start"]) / values["l2_width"], 0, 1
    )


def _pairs(q_len: np.ndarray, kv_len: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Pairs of query and key of one head, as if sequences were continuous."""
    growing = np.clip(reach - (kv_len - q_len), 0, q_len)  # attend their whole prefix
    return growing * (kv_len - q_len + growing / 2) + (q_len - growing) * reach


def _kernel_bytes(
    batch: np.ndarray,
    q_len: np.ndarray,
    kv_len: np.ndarray,
    n_heads: np.ndarray,
    n_kv_heads: np.ndarray,
    head_dim: np.ndarray,
    window: np.ndarray,
    kv_bytes: np.ndarray,
) -> np.ndarray:
    read = np.where(window > 0, np.minimum(window + q_len, kv_len), kv_len)
    rows = n_heads * q_len * _IO_BYTES + n_kv_heads * read * kv_bytes
    return 2 * batch * head_dim * rows


def _p_norm(a: np.ndarray, b: np.ndarray | float, p: float) -> np.ndarray:
    return (a**p + b**p) ** (1 / p)


PREFILL_ATTENTION = Operator(
    name="prefill_attention",
    parameters=(
        Parameter(name="launch_s", start=8.6e-6, low=1e-6, high=3e-5),
        Parameter(name="launch_per_128_dim_s", start=5.6e-7, low=1e-9, high=1e-5),
        Parameter(name="prefill_s", start=2.84e-6, low=1e-8, high=1e-5),
        Parameter(name="sequence_s", start=7.5e-9, low=1e-11, high=1e-7),
        Parameter(name="tile_s", start=1.96e-6, low=1e-8, high=1e-5),
        Parameter(name="unpacked_tokens", start=100, low=4, high=128),
        Parameter(name="block_columns", start=120, low=16, high=256),
        Parameter(name="window_edge", start=0.09, low=1e-2, high=1),
        Parameter(name="mm_efficiency", start=0.776, low=0.3, high=1),
        Parameter(name="pair_s", start=5.64e-11, low=1e-12, high=1e-9),
        Parameter(name="split", start=0.5, low=0, high=1),
        Parameter(name="kernel_p", start=7, low=1, high=8),
        Parameter(name="hbm_efficiency", start=0.98, low=0.2, high=1),
        Parameter(name="memory_p", start=1.26, low=1, high=8),
        Parameter(name="l2_start", start=0.3, low=0.05, high=1),
        Parameter(name="l2_width", start=0.46, low=0.1, high=3),
        Parameter(name="write_s", start=6.3e-7, low=1e-8, high=1e-5),
        Parameter(name="write_power", start=1.18, low=0.5, high=3),
        Parameter(name="throttle", start=0.077, low=1e-3, high=0.5),
    ),
    time_s=lambda sizes, values, chip: prefill_attention_time_s(
        **sizes, values=values, chip=chip
    ),
    bound_s=lambda sizes, chip: prefill_attention_bound_s(**sizes, chip=chip),
)
