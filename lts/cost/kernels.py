"""Single operators on the GPUs of a cluster, through the calibrated models.

What `lts.cost.step_operators` asks for, from the operators of `lts.cost.operators` with
the calibration that the chip names. Weights of forms that were not measured (4 bits, or
8 bits with arithmetic in 16) take the nearest measured form, less the weight bytes that
they save.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from lts.calibration import Calibration, load
from lts.cost.operators import gemm as gemms
from lts.cost.operators import moe
from lts.cost.operators.collectives import collective_time_s
from lts.cost.operators.decode_attention import (
    decode_attention_key,
    decode_attention_time_s,
)
from lts.cost.operators.mla import mla_context_time_s, mla_generation_time_s
from lts.cost.operators.prefill_attention import prefill_attention_time_s
from lts.cost.served_memory import FORM_BYTES
from lts.hardware import Chip, Cluster

Size = np.ndarray | float

_NEAREST = {"w8": "fp8", "int4": "bfloat16", "fp4": "fp8"}
"""Measured form that stands for another."""
_ARITHMETIC = {"w8": "bfloat16", "fp4": "float4_e2m1fn"}
"""Arithmetic of a form, where it is another than that of the nearest one."""
_CACHES = {"bfloat16": ("bfloat16", 2.0), "fp8": ("float8_e4m3fn", 1.0)}
"""Name in the keys of fits, and bytes of a value, of each form of a cache."""
READ_SHARE = 0.85
"""Of the memory's bandwidth that saved weight bytes would have taken."""

_SPREAD_OF_ONE = 0.26
_MOST_OF_TWO, _MOST_POWER = 0.56, 0.8
"""Expected largest of `n` standard normals, `0.56 log2(n)^0.8`: within 5% up to 128."""


def spread_of(experts: Size) -> np.ndarray:
    """Popularity of experts when serving: its standard deviation over its mean.

    Grows with their number: few experts are trained to be as busy as each other, of
    hundreds a prompt uses some. Coefficient chosen by the order of published
    serving measurements (`experiments/e2e`).
    """
    return _SPREAD_OF_ONE * np.sqrt(_array(experts))


def busiest(tokens: Size, top_k: Size, experts: Size, expert_ways: Size) -> np.ndarray:
    """Rows of the busiest expert rank over the mean of all.

    Ranks differ by chance, as the root of their rows, and by how popular the experts
    that they hold are; of both, the largest among all ranks is expected.

    >>> round(float(busiest(1e9, 8, 128, 8)), 2)  # popularity alone
    1.99
    """
    expert_ways = _array(expert_ways)
    most = _MOST_OF_TWO * np.log2(expert_ways) ** _MOST_POWER
    mean = np.maximum(_array(tokens) * top_k / expert_ways, 1e-9)
    by_chance = 1 / mean
    by_popularity = spread_of(experts) ** 2 * expert_ways / experts
    # no rank has more rows than there are
    return np.minimum(1 + most * np.sqrt(by_chance + by_popularity), expert_ways)


def _array(size: Size) -> np.ndarray:
    return np.asarray(size, float)


class CalibratedKernels:
    """Operators on one chip and its links."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.chip = cluster, cluster.chip

    @cached_property
    def calibration(self) -> Calibration:
        """Of the chip, or of its nearest relative."""
        return load(self.chip.calibration)

    def gemm(self, m: Size, n: Size, k: Size, form: str) -> np.ndarray:
        """`[m, k] @ [k, n]`; float8 inputs come quantised by the kernel before."""
        near, chip = self._near(form)
        time = gemms.gemm_time_s(
            _array(m),
            _array(n),
            _array(k),
            form=near,
            values=self._values("gemm", near),
            chip=chip,
            fused_quantisation=True,
        )
        return self._lighter(time, _array(n) * k, form, near)

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
        dtype, nbytes = _CACHES[cache]
        length = _array(length)
        return prefill_attention_time_s(
            _array(batch),
            length,
            length,
            _array(heads),
            _array(kv_heads),
            _array(head_dim),
            _array(window or 0),
            _array(nbytes),
            values=self._fit(f"prefill_attention/{dtype}").values,
            chip=self.chip,
        )

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
        dtype, nbytes = _CACHES[cache]
        key = decode_attention_key(dtype, heads, kv_heads, self.calibration.fits)
        return decode_attention_time_s(
            _array(batch),
            _array(context),
            _array(heads),
            _array(kv_heads),
            _array(head_dim),
            _array(window or 0),
            _array(nbytes),
            values=self._fit(key).values,
            chip=self.chip,
        )

    def latent_attention(
        self, phase: str, batch: Size, length: Size, heads: float, cache: str
    ) -> np.ndarray:
        """MLA; `length` of the prompts (prefill) or the context (decode)."""
        dtype, nbytes = _CACHES[cache]
        batch, length = _array(batch), _array(length)
        rest = (_array(heads), _array(nbytes))
        if phase == "prefill":
            values = self._fit(f"mla_context/{dtype}").values
            return mla_context_time_s(
                batch, length, length, *rest, values=values, chip=self.chip
            )
        values = self._fit(f"mla_generation/{dtype}").values
        return mla_generation_time_s(
            batch, length, *rest, values=values, chip=self.chip
        )

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
        """Of the busiest rank, with uneven routing."""
        near, chip = self._near(form)
        skew = busiest(tokens, top_k, experts, expert_ways)
        time = moe.moe_time_s(
            _array(tokens),
            _array(hidden),
            _array(size),
            _array(top_k),
            _array(experts),
            _array(tensor_ways),
            _array(expert_ways),
            skew=skew,
            spread=spread_of(experts),
            form=near,
            values=self._values("moe", near),
            chip=chip,
        )
        _, active = moe.rank_load(
            *(_array(size) for size in (tokens, top_k, experts, expert_ways)),
            skew=skew,
            spread=spread_of(experts),
        )
        return self._lighter(time, active * 3 * hidden * size / tensor_ways, form, near)

    def collective(
        self, kind: str, nbytes: Size, inside: int, across: int, custom: bool
    ) -> np.ndarray:
        """Of the whole array; NCCL but for sums that engines have kernels for."""
        members = inside * across if kind == "all_gather" else 1
        return collective_time_s(
            kind,
            _array(nbytes) / members,
            _array(inside),
            _array(across),
            calibration=self.calibration,
            cluster=self.cluster,
            implementation="best" if custom and self._is_switched else "nccl",
        )

    def pass_on(self, nbytes: Size, across: bool) -> np.ndarray:
        """From stage to stage."""
        return collective_time_s(
            "collective_permute",
            _array(nbytes),
            _array(1 if across else 2),
            _array(2 if across else 1),
            calibration=self.calibration,
            cluster=self.cluster,
        )

    def elementwise(self, nbytes: Size) -> np.ndarray:
        """Traffic alone: launches are a matter of the engine."""
        return _array(nbytes) / self.chip.achieved_bytes_per_s

    @property
    def _is_switched(self) -> bool:
        """Engines leave sums to NCCL where GPUs do not reach each other directly."""
        return "PCIe" not in self.cluster.intra.name

    def _near(self, form: str) -> tuple[str, Chip]:
        """The measured form to take, and the chip with its arithmetic."""
        near = _NEAREST.get(form, form)
        if form == "fp4" and _ARITHMETIC[form] not in dict(self.chip.peak_flops_per_s):
            near = "bfloat16"  # widened in the kernel
        dtype = gemms.FORMS[near].dtype
        peaks = dict(self.chip.peak_flops_per_s)
        wanted = _ARITHMETIC.get(form, dtype) if near != "bfloat16" else dtype
        if wanted not in peaks:  # weights are widened to what the chip has
            wanted = "bfloat16"
        if wanted == dtype:
            return near, self.chip
        peaks[dtype] = peaks[wanted]
        return near, replace(self.chip, peak_flops_per_s=tuple(peaks.items()))

    def _lighter(
        self, time: np.ndarray, values: Size, form: str, near: str
    ) -> np.ndarray:
        """The time without the weight bytes that a form has not."""
        share = FORM_BYTES[form] / FORM_BYTES[near]
        if share >= 1:
            return time
        saved = values * (FORM_BYTES[near] - FORM_BYTES[form])
        rate = READ_SHARE * self.chip.hbm_bandwidth_bytes_per_s
        return np.maximum(time - saved / rate, share * time)

    def _values(self, operator: str, form: str):
        return self._fit(f"{operator}/{form}").values

    def _fit(self, key: str):
        """Of the chip, or of an H100 for what its calibration has not."""
        held = self.calibration
        return (held if key in held.fits else load("h100")).fit(key)
