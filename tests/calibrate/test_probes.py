"""Programs that `lts calibrate` times: what they compute, and that all of it is run."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from lts.calibrate import clock as clocks
from lts.calibrate.clock import Stopwatch, program
from lts.calibrate.probes import families
from lts.calibrate.probes.attention import _cudnn_chain, _plain_chain
from lts.calibrate.probes.base import Chain
from lts.calibrate.probes.collectives import _chain as collective_chain
from lts.calibrate.probes.products import copy_family, gemm_family
from lts.compiler import Compiler, missing


def test_a_chain_is_executed_as_often_as_asked() -> None:
    for steps in 1, 4, 16:
        chain = Chain(
            step=lambda x, by: x * by, carry=jnp.ones(3), fixed=jnp.float32(2.0)
        )
        assert program(chain, steps)(chain.carry, chain.fixed)[0] == 2.0**steps


def test_products_and_copies_compute_what_they_claim() -> None:
    (probe,) = (
        probe
        for probe in gemm_family("bfloat16", quick=True).probes
        if probe.sizes == {"m": 64, "n": 256, "k": 256}
    )
    chain = probe.ways["jnp"]()
    x, (w, v) = (np.asarray(chain.carry, np.float32), chain.fixed)
    expected = x @ np.asarray(w, np.float32) @ np.asarray(v, np.float32)
    found = np.asarray(chain.step(chain.carry, chain.fixed), np.float32)
    assert found.shape == (64, 256) and probe.amount == 2 * 2 * 64 * 256 * 256
    assert np.abs(found - expected).max() < 0.05
    assert 0.8 < found.std() < 1.2
    copy = copy_family(quick=True).probes[0].ways["jnp"]()
    assert (copy.step(copy.carry, copy.fixed) == copy.carry).all()


@pytest.mark.parametrize("q_len, kv_len", [(16, 16), (1, 24)])
def test_attention_computes_what_it_claims(q_len: int, kv_len: int) -> None:
    chain = _plain_chain(2, q_len, kv_len)
    queries, *caches = chain.carry
    keys, values = chain.fixed or caches
    out, *written = jax.jit(chain.step)(chain.carry, chain.fixed)

    def by_token(x: jax.Array) -> np.ndarray:
        """`[batch, heads..., tokens, dim]` as `[batch, tokens, heads, dim]`."""
        array = np.asarray(x, np.float32)
        return np.swapaxes(array.reshape(2, -1, x.shape[-2], 128), 1, 2)

    asked, keys, values = map(by_token, (queries, keys, values))
    group = asked.shape[2] // keys.shape[2]
    keys, values = (np.repeat(one, group, axis=2) for one in (keys, values))
    weights = np.exp(np.einsum("bthd,bshd->bhts", asked, keys) / np.sqrt(128))
    weights *= np.tri(q_len, kv_len, kv_len - q_len)
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhts,bshd->bthd", weights, values)
    assert np.abs(by_token(out) - expected).max() < 0.02 < np.abs(expected).max()
    start = kv_len - q_len
    for old, new in zip(caches, written, strict=True):
        changed = (np.asarray(old) != np.asarray(new)).any((0, 1, 3))
        assert changed[start : start + q_len].all() and changed.sum() == q_len
    flash = _cudnn_chain(2, q_len, kv_len)
    assert flash.carry[0].shape == asked.shape
    assert flash.carry[1].shape == by_token(caches[0]).shape


@pytest.mark.parametrize(
    "kind",
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"],
)
def test_collectives_are_in_their_programs(kind: str) -> None:
    chain = collective_chain(kind, 16, jax.devices()[:4])
    compiled = program(chain, 4).lower(chain.carry, chain.fixed).compile()
    hlo = kind.replace("_", "-")
    assert re.search(rf"= .*{hlo}(-start)?\(", compiled.as_text())
    result = program(chain, 4)(chain.carry, chain.fixed)
    assert result.shape == (64,) and (result == 0).all()


def test_a_collective_counts_its_bytes() -> None:
    by_key = {f.key: f for f in families(range(4), quick=False, fp8=False)}
    assert "all_to_all/nccl/2" in by_key and "all_to_all/nccl/4" in by_key
    gather = by_key["all_gather/nccl/4"].probes[0]
    assert gather.sizes == {"nbytes": 256, "members": 4}  # a shard of 1 KiB
    assert (gather.amount, gather.local_bytes) == (3 * 256, 2 * 256)
    scatter = by_key["reduce_scatter/nccl/4"].probes[-1]
    assert scatter.sizes["nbytes"] == 2**28
    assert (scatter.amount, scatter.local_bytes) == (0.75 * 2**28, 1.25 * 2**28)
    passed = by_key["p2p/nvlink"].probes[0]
    assert (passed.sizes["nbytes"], passed.amount) == (1024, 1024)


def test_the_stopwatch_tells_long_from_short(monkeypatch: pytest.MonkeyPatch) -> None:
    family = copy_family(quick=True)
    short, long = family.probes[:2]
    watch = Stopwatch()
    limits = {"estimate_s": 1e-3, "limit_s": 0.1}
    assert 0 < watch(family, short, "jnp", **limits) < 1e-2
    assert watch(family, long, "jnp", **limits) > 5 * watch(
        family, short, "jnp", **limits
    )
    # a clock that stands still: work cannot take less than a tenth of what was seen
    ticks = iter(np.arange(1000) * 1.0)
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: next(ticks))
    assert watch(family, short, "jnp", **limits) == pytest.approx(1.0 / 8, rel=0.01)


@pytest.mark.skipif(missing("h100") is not None, reason=missing("h100") or "")
def test_on_a_gpu_no_execution_is_left_out_or_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    everything = {f.key: f for f in families(jax.devices(), quick=True, fp8=False)}
    probes = {key: everything[key].probes[0] for key in everything}
    products = r"gemm_fusion_dot\S* = .* fusion\(|cublas"
    found = {}
    with Compiler("h100") as compiler:
        for key, way, kernel in (
            ("elementwise/add", "jnp", r"= bf16\[8,4096\]\S* fusion\("),
            ("gemm/bfloat16", "jnp", products),
            ("prefill_attention/bfloat16", "plain", products),
            ("all_reduce/nccl/8", "jax", r" all-reduce(-start)?\("),
            ("all_gather/nccl/8", "jax", r" all-gather(-start)?\("),
        ):
            chain = probes[key].ways[way]()
            run = program(chain, 32)
            exported = jax.export.export(run, platforms=("cuda",))(
                chain.carry, chain.fixed
            )
            text = compiler.compile(
                exported.serialize(), 1 if chain.mesh is None else 8
            ).final
            found[key] = len(re.findall(kernel, text))
    assert found == {
        "elementwise/add": 8,
        "gemm/bfloat16": 16,
        "prefill_attention/bfloat16": 16,
        "all_reduce/nccl/8": 8,
        "all_gather/nccl/8": 8,
    }
