"""Calibrated operators as a step asks for them: forms, skew, links."""

from dataclasses import replace

import numpy as np
import pytest

from lts.cost.kernels import CalibratedKernels, busiest, spread_of
from lts.hardware import Cluster

H100 = CalibratedKernels(Cluster.preset("h100"))
A100 = CalibratedKernels(Cluster.preset("a100"))


def test_few_rows_take_the_time_of_their_weights() -> None:
    times = {
        form: float(H100.gemm(4.0, 8192.0, 8192.0, form))
        for form in ("bfloat16", "fp8", "fp8_block", "int4", "fp4")
    }
    weights_s = 2 * 8192**2 / 3.35e12
    assert weights_s < times["bfloat16"] < 1.5 * weights_s
    for form, share in (
        ("fp8", 0.5),
        ("fp8_block", 0.5),
        ("int4", 0.28),
        ("fp4", 0.28),
    ):
        assert share * 0.9 < times[form] / times["bfloat16"] < share + 0.25


def test_many_rows_take_the_time_of_their_arithmetic() -> None:
    long = {
        form: float(H100.gemm(16384.0, 8192.0, 8192.0, form))
        for form in ("bfloat16", "fp8", "w8", "int4", "fp4")
    }
    assert 2 * 16384 * 8192**2 / 989.4e12 < long["bfloat16"]
    assert 0.45 < long["fp8"] / long["bfloat16"] < 0.75
    # weights that are widened first run at the speed of what they become
    for form in ("w8", "int4", "fp4"):
        assert 0.8 < long[form] / long["bfloat16"] < 1.25


def test_a_chip_with_4_bit_units_uses_them() -> None:
    peaks = dict(H100.chip.peak_flops_per_s) | {"float4_e2m1fn": 3957.8e12}
    chip = replace(H100.chip, peak_flops_per_s=tuple(peaks.items()))
    quick = CalibratedKernels(replace(H100.cluster, chip=chip))
    one = float(quick.gemm(16384.0, 8192.0, 8192.0, "fp4"))
    assert one < 0.7 * float(H100.gemm(16384.0, 8192.0, 8192.0, "fp8"))


def test_float8_weights_run_on_a_chip_without_float8_arithmetic() -> None:
    eight = float(A100.gemm(4.0, 8192.0, 8192.0, "w8"))
    assert 0.4 < eight / float(A100.gemm(4.0, 8192.0, 8192.0, "bfloat16")) < 0.85


def test_the_busiest_rank_has_more_by_chance_and_by_popularity() -> None:
    assert busiest(64.0, 8, 128, 1) == 1
    few, many = (float(busiest(t, 8, 128, 8)) for t in (4.0, 1e9))
    assert few > many > 1.2
    assert float(busiest(4.0, 8, 128, 2)) < few
    assert busiest(np.array([1e-6]), 8, 128, 8) == 8


def test_many_experts_are_less_evenly_popular_than_few() -> None:
    # a Poisson-like spread: what a rank's share varies by depends on the ranks alone
    assert spread_of(128) == pytest.approx(4 * spread_of(8))
    assert 0.5 < float(spread_of(8)) < 1 < float(spread_of(64)) < 3
    eight, many = (float(busiest(1e9, 8, n, 8)) for n in (64, 256))
    assert eight == pytest.approx(many)


def test_experts_that_are_spread_wait_for_the_busiest_rank() -> None:
    sizes = (4096, 1536, 8, 128)
    whole = float(H100.experts(1.0, *sizes, 8, 1, "fp8"))
    spread = float(H100.experts(1.0, *sizes, 1, 8, "fp8"))
    assert spread > whole
    assert float(H100.experts(64.0, *sizes, 1, 8, "fp8")) > spread


def test_caches_of_one_byte_are_read_in_less_time() -> None:
    shape = (8.0, 1.0, 128, None)
    two = H100.decode_attention(64.0, 8192.0, *shape, "bfloat16")
    one = H100.decode_attention(64.0, 8192.0, *shape, "fp8")
    assert 0.4 < float(one / two) < 0.8
    assert two > 64 * 8192 * 2 * 128 * 2 / 3.35e12
    whole = H100.latent_attention("decode", 64.0, 8192.0, 16.0, "bfloat16")
    assert whole > 64 * 8192 * 576 * 2 / 3.35e12


def test_prompts_grow_with_the_square_of_their_length() -> None:
    shape = (32.0, 8.0, 128, None, "bfloat16")
    one, two = (H100.prefill_attention(1.0, n, *shape) for n in (8192.0, 16384.0))
    assert 3 < float(two / one) < 4.5
    one, two = (
        H100.latent_attention("prefill", 1.0, n, 16.0, "bfloat16")
        for n in (8192.0, 16384.0)
    )
    assert 3 < float(two / one) < 4.5


def test_engines_sum_quicker_than_nccl_but_not_over_pcie() -> None:
    own = H100.collective("all_reduce", 65536.0, 8, 1, True)
    nccl = H100.collective("all_reduce", 65536.0, 8, 1, False)
    assert own < nccl
    link = replace(H100.cluster.intra, name="PCIe5")
    slow = CalibratedKernels(replace(H100.cluster, intra=link))
    assert slow.collective("all_reduce", 65536.0, 8, 1, True) == slow.collective(
        "all_reduce", 65536.0, 8, 1, False
    )


def test_a_gather_is_told_by_what_it_ends_with() -> None:
    nbytes = 256e6
    for kind in ("all_gather", "reduce_scatter"):
        time = float(H100.collective(kind, nbytes, 8, 1, False))
        assert time == pytest.approx(nbytes * 7 / 8 / 340e9, rel=0.3)
    assert H100.collective("all_gather", 1e6, 1, 2, False) > H100.collective(
        "all_gather", 1e6, 2, 1, False
    )
    assert H100.pass_on(1e6, True) > H100.pass_on(1e6, False) > 1e6 / 450e9
    assert H100.elementwise(3.35e9) > 1e-3
