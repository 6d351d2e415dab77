"""Shardy as an oracle: its rules, its propagation, and what becomes of its crashes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from lts.shardy import (
    Shardy,
    ShardyCollective,
    ShardyError,
    ShardyRule,
    available,
    cache_folder,
    stablehlo_text,
)

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 32), jnp.float32)
UNSHARDED = [[], []]


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


TEXT = stablehlo_text(jax.jit(product), X, W)

# Workers that end in a known way: these take the place of Shardy's.
CRASH = "import os, sys; sys.stderr.write('check failed: 1 == 2\\n'); os.abort()"
READY = "print('{}', flush=True)\n"
HANG = READY + "import time; time.sleep(60)"
CRASH_AT_WORK = READY + "import sys, os\nfor line in sys.stdin: os.abort()"


@pytest.fixture(scope="module")
def shardy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shardy]:
    with Shardy(cache=tmp_path_factory.mktemp("shardy")) as started:
        if (why := available(started)) is not None:
            pytest.skip(why)
        yield started


def python(code: str, cache: Path, timeout_s: float = 60) -> Shardy:
    """A `Shardy` whose worker runs `code`."""
    command = (sys.executable, "-c", code)
    return Shardy(cache=cache, command=command, timeout_s=timeout_s)


def test_a_matmul_sums_over_what_both_operands_share(shardy: Shardy) -> None:
    dot, tanh, end = shardy.factor_rules(TEXT)
    assert dot.rule == ShardyRule(
        operands=(((0,), (2,)), ((2,), (1,))),
        results=(((0,), (1,)),),
        sizes=(8, 32, 16),
        reduction=(2,),
        need_replication=(),
        permutation=(),
    )
    assert [op.name for op in (dot, tanh, end)] == [
        "stablehlo.dot_general",
        "stablehlo.tanh",
        "func.return",
    ]
    assert dot.operands == (0, 1)  # the arguments
    assert tanh.operands == dot.results
    assert end.operands == tanh.results
    assert end.rule is None


def test_a_merged_dim_has_both_factors_the_major_one_first(shardy: Shardy) -> None:
    heads = jax.ShapeDtypeStruct((4, 6), jnp.float32)
    text = stablehlo_text(jax.jit(lambda x: x.reshape(24)), heads)
    rule = shardy.factor_rules(text)[0].rule
    assert rule is not None
    assert (rule.operands, rule.results) == ((((0,), (1,)),), (((0, 1),),))
    assert rule.sizes == (4, 6)


def test_a_sort_needs_its_dim_whole_and_its_combiner_stands_deeper(
    shardy: Shardy,
) -> None:
    text = stablehlo_text(jax.jit(lambda x: jax.lax.sort(x, dimension=1)), X)
    ops = shardy.factor_rules(text)
    (sort,) = (op for op in ops if op.name == "stablehlo.sort")
    assert sort.rule is not None
    assert sort.rule.need_replication == sort.rule.operands[0][1]
    assert {op.depth for op in ops if op.name == "stablehlo.compare"} == {1}


def test_rows_pass_through_and_a_shared_dim_ends_in_an_all_reduce(
    shardy: Shardy,
) -> None:
    rows = shardy.propagated(TEXT, {"x": 2}, [[["x"], []], None])
    assert rows.results == ((("x",), ()),)
    assert rows.collectives == ()
    shared = shardy.propagated(TEXT, {"x": 2}, [[[], ["x"]], None])
    assert shared.arguments == (((), ("x",)), (("x",), ()))
    result_bytes = 8 * 32 * 4
    assert shared.collectives == (
        ShardyCollective(kind="all_reduce", axes=("x",), nbytes=result_bytes),
    )


def test_shardings_of_the_text_itself_are_read(shardy: Shardy) -> None:
    mesh = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    columns = NamedSharding(mesh, PartitionSpec(None, "tp"))
    rows = NamedSharding(mesh, PartitionSpec("dp"))
    whole = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(product, in_shardings=(rows, columns), out_shardings=whole)
    found = shardy.propagated(stablehlo_text(jitted, X, W))
    assert found.arguments == ((("dp",), ()), ((), ("tp",)))
    assert found.results == (((), ()),)
    kinds = {collective.kind for collective in found.collectives}
    assert kinds == {"all_gather"}
    assert found.collectives[-1].nbytes == 8 * 32 * 4


def test_operations_of_chlo_are_written_out(shardy: Shardy) -> None:
    text = stablehlo_text(jax.jit(jax.lax.acos), X)
    assert not [op for op in shardy.factor_rules(text) if "chlo" in op.name]
    found = shardy.propagated(text, {"x": 2}, [[["x"], []]])
    assert found.results == ((("x",), ()),)
    assert found.collectives == ()


def test_part_of_an_axis_is_named_with_its_place(shardy: Shardy) -> None:
    text = """module {
      sdy.mesh @mesh = <["x"=4]>
      func.func public @main(
        %a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}
      ) -> tensor<4x2xf32> {
        %0 = stablehlo.sine %a : tensor<4x2xf32>
        return %0 : tensor<4x2xf32>
      }
    }"""
    found = shardy.propagated(text)
    assert found.arguments == ((("x:(1)2",), ()),)
    assert found.collectives == (
        ShardyCollective(kind="all_gather", axes=("x",), nbytes=4 * 2 * 4),
    )


def test_text_that_is_no_program_is_refused_in_one_line(shardy: Shardy) -> None:
    with pytest.raises(ShardyError, match="refused the program: .*garbage") as error:
        shardy.factor_rules("garbage")
    assert "\n" not in str(error.value)
    assert "lts.shardy.stablehlo_text" in str(error.value)
    assert shardy.factor_rules(TEXT)  # the worker lives on
    with pytest.raises(ShardyError, match="1 specs for the 2 arguments of main"):
        shardy.propagated(TEXT, {"x": 2}, [UNSHARDED])


def test_answers_are_kept_on_disk_by_text(shardy: Shardy, tmp_path: Path) -> None:
    with Shardy(cache=shardy.cache) as other:
        assert other.factor_rules(TEXT) == shardy.factor_rules(TEXT)
        assert other.propagated(TEXT, {"x": 2}, [[["x"], []], None]).results
        assert other._worker is None  # nothing was asked of it
    with python(CRASH, tmp_path) as crashing, pytest.raises(ShardyError):
        crashing.factor_rules(TEXT)
    assert list(tmp_path.iterdir()) == []  # an error is no answer


def test_a_crash_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with python(CRASH, tmp_path) as crashing:
        for _ in range(2):  # the second request starts another worker
            with pytest.raises(ShardyError, match="with status -6") as error:
                crashing.factor_rules(TEXT)
        assert "check failed: 1 == 2" in str(error.value)
        assert "try another program or jax version" in str(error.value)
        why = available(crashing)
        assert why is not None and "\n" not in why and "status -6" in why


def test_a_crash_at_work_is_an_error_too(tmp_path: Path) -> None:
    with python(CRASH_AT_WORK, tmp_path) as crashing:
        with pytest.raises(ShardyError, match="with status -6"):
            crashing.propagated(TEXT, {"x": 2}, [UNSHARDED, None])


def test_a_request_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with python(HANG, tmp_path, timeout_s=0.5) as hanging:
        with pytest.raises(ShardyError, match="more than 0.5 s: raise timeout_s"):
            hanging.factor_rules(TEXT)


def test_a_jaxlib_without_bindings_is_named(tmp_path: Path) -> None:
    worker = Path(__file__).parents[1] / "lts" / "shardy_worker.py"
    blind = (
        "import sys, runpy, jax, jaxlib.mlir.dialects as dialects\n"
        "del dialects.sdy\n"
        "sys.modules['jaxlib.mlir.dialects.sdy'] = None\n"
        f"runpy.run_path({str(worker)!r}, run_name='__main__')"
    )
    with python(blind, tmp_path) as missing:
        why = available(missing)
    assert why is not None
    assert "jaxlib has no Shardy bindings" in why and "sdy" in why
    assert "\n" not in why


def test_the_cache_is_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LTS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LTS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lts"
