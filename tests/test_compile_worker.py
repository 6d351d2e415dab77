import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)

from lts.compiler import (
    CompiledProgram,
    Compiler,
    compile_exported,
    missing,
    platform_of,
)
from lts.hlo import list_collectives
from tests.after_spmd import compiled_with_dump

P = PartitionSpec
AUTO = (AxisType.Auto,) * 2
ABSTRACT = AbstractMesh((2, 4), ("dp", "tp"), axis_types=AUTO)

LAYERS, BATCH, TIME, D_MODEL, D_FF = 3, 16, 4, 64, 128
ARGS = tuple(
    jax.ShapeDtypeStruct(shape, dtype)
    for shape, dtype in (
        ((BATCH, D_MODEL), jnp.bfloat16),
        ((LAYERS, D_MODEL, D_FF), jnp.bfloat16),
        ((LAYERS, D_FF, D_MODEL), jnp.bfloat16),
        ((LAYERS, BATCH, TIME, D_MODEL), jnp.bfloat16),
        ((8, 5), jnp.int4),
    )
)
IN_SPECS = (P("dp"), P(None, None, "tp"), P(None, "tp"), P(None, "dp"), P("dp"))
OUT_SPECS = (P(), P(None, "dp"))


def jit_decode(mesh: Mesh | AbstractMesh):
    """A column-then-row MLP per layer, scanned; its results go into a donated cache."""

    def decode(x, up, down, cache, unused):
        def layer(x, weights):
            layer_up, layer_down, layer_cache = weights
            y = jax.nn.relu(x @ layer_up) @ layer_down
            y = jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P("dp")))
            update = jax.lax.dynamic_update_slice(layer_cache, y[:, None], (0, 1, 0))
            return y, update

        return jax.lax.scan(layer, x, (up, down, cache))

    return jax.jit(
        decode,
        in_shardings=tuple(NamedSharding(mesh, spec) for spec in IN_SPECS),
        out_shardings=tuple(NamedSharding(mesh, spec) for spec in OUT_SPECS),
        donate_argnums=3,
        keep_unused=True,
    )


def export(jitted, *args: jax.ShapeDtypeStruct, target: str = "cpu") -> bytearray:
    platforms = (platform_of(target),)
    return jax.export.export(jitted, platforms=platforms)(*args).serialize()


@pytest.fixture(scope="module")
def decode() -> CompiledProgram:
    return compile_exported(export(jit_decode(ABSTRACT), *ARGS), 8)


def test_collectives_equal_the_closed_form(decode: CompiledProgram) -> None:
    layer_bytes, result_bytes = BATCH // 2 * D_MODEL * 2, BATCH * D_MODEL * 2
    found = [
        (c.kind, c.axes, c.nbytes, c.group_size, c.count, c.trips_known)
        for c in list_collectives(decode.after_spmd, ABSTRACT.shape)
    ]
    assert found == [
        ("all_reduce", ("tp",), layer_bytes, 4, LAYERS, True),
        ("all_gather", ("dp",), result_bytes, 2, 1, True),
    ]
    final = list_collectives(decode.final, ABSTRACT.shape)
    assert max(c.count for c in final if c.kind == "all_reduce") == LAYERS


def compile_here(jitted, *args: jax.ShapeDtypeStruct):
    """The direct way, on this process's devices: collectives and memory analysis."""
    compiled, dump = compiled_with_dump(jitted.lower(*args))
    collectives = list_collectives(dump, ABSTRACT.shape)
    memory = compiled.memory_analysis()
    assert memory is not None
    return collectives, memory


def concrete_mesh() -> Mesh:
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    return Mesh(devices, ("dp", "tp"), axis_types=AUTO)


def test_program_equals_that_of_a_direct_compilation(decode: CompiledProgram) -> None:
    direct, memory = compile_here(jit_decode(concrete_mesh()), *ARGS)
    assert list_collectives(decode.after_spmd, ABSTRACT.shape) == direct
    assert decode.argument_bytes == memory.argument_size_in_bytes
    assert decode.output_bytes == memory.output_size_in_bytes
    assert decode.temp_bytes == memory.temp_size_in_bytes
    assert decode.alias_bytes == memory.alias_size_in_bytes


def test_shardings_propagate_as_in_a_direct_compilation() -> None:
    def jit_repeat(mesh: Mesh | AbstractMesh):
        """The cache's spec reaches into the loops only if nothing stands between."""

        def repeat(x, up, down, cache):
            def step(x, _):
                y = jnp.tanh(x @ up) @ down
                y = jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P("dp")))
                return y, None

            def steps(x, _):
                return jax.lax.scan(step, x, None, length=3)

            x, _ = jax.lax.scan(steps, x, None, length=5)
            return x, jax.lax.dynamic_update_slice(cache, x[:, None], (0, 3, 0))

        ins = P("dp"), P(None, "tp"), P("tp"), P("dp", None, "tp")
        return jax.jit(
            repeat,
            in_shardings=tuple(NamedSharding(mesh, spec) for spec in ins),
            out_shardings=tuple(NamedSharding(mesh, ins[n]) for n in (0, 3)),
            donate_argnums=3,
        )

    shapes = (16, 64), (64, 128), (128, 64), (16, 8, 64)
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    direct, _ = compile_here(jit_repeat(concrete_mesh()), *args)
    program = compile_exported(export(jit_repeat(ABSTRACT), *args), 8)
    assert list_collectives(program.after_spmd, ABSTRACT.shape) == direct
    assert ("all_gather", 15) in {(c.kind, c.count) for c in direct}


def test_bytes_are_exact_and_donation_is_kept(decode: CompiledProgram) -> None:
    cache_bytes = LAYERS * BATCH // 2 * TIME * D_MODEL * 2
    assert decode.argument_local_bytes == (
        BATCH // 2 * D_MODEL * 2,
        LAYERS * D_MODEL * D_FF // 4 * 2,
        LAYERS * D_FF // 4 * D_MODEL * 2,
        cache_bytes,
        4 * 5 // 2,  # not used by the program, two 4-bit integers to a byte
    )
    assert decode.argument_bytes == sum(decode.argument_local_bytes)
    assert decode.alias_bytes == cache_bytes
    tuple_of_two_bytes = 16
    assert decode.result_local_bytes == (BATCH * D_MODEL * 2, cache_bytes)
    assert decode.output_bytes == sum(decode.result_local_bytes) + tuple_of_two_bytes


def test_version_is_reported_and_nothing_is_rematerialized(
    decode: CompiledProgram,
) -> None:
    assert decode.jax_version == jax.__version__
    assert decode.warnings == ()


def test_one_device_program_has_no_partitioning_of_its_own() -> None:
    mesh = AbstractMesh((1,), ("tp",), axis_types=(AxisType.Auto,))
    sharded = NamedSharding(mesh, P("tp"))
    with jax.enable_x64(True):
        jitted = jax.jit(lambda x: x * 2, in_shardings=sharded, out_shardings=sharded)
        exported = export(jitted, jax.ShapeDtypeStruct((6,), jnp.float64))
    program = compile_exported(exported, 1)
    assert program.after_spmd == program.final
    assert list_collectives(program.final, mesh.shape) == []
    assert program.argument_local_bytes == (48,)


def test_full_rematerialization_is_reported() -> None:
    before = NamedSharding(ABSTRACT, P(None, ("dp", "tp")))
    after = NamedSharding(ABSTRACT, P("dp", None, "tp"))

    def swap(x: jax.Array, unused: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.with_sharding_constraint(jnp.cos(x), after))

    jitted = jax.jit(swap, in_shardings=(before, before), out_shardings=after)
    x = jax.ShapeDtypeStruct((16, 64, 32), jnp.float32)
    program = compile_exported(export(jitted, x, x), 8)
    (warning,) = program.warnings
    assert "(x): {" in warning and "} -> {" in warning
    # jitted without keep_unused, the second argument is no part of the program
    assert program.argument_local_bytes == (16 * 64 * 32 * 4 // 8, 0)


def test_wrong_device_count_says_what_to_pass() -> None:
    exported = export(jit_decode(ABSTRACT), *ARGS)
    with pytest.raises(RuntimeError, match="pass num_devices=8") as error:
        compile_exported(exported, 4)
    assert "compiling on 4 CPU devices failed:" in str(error.value)
    with pytest.raises(ValueError, match="cannot compile on 0 devices"):
        compile_exported(exported, 0)


def test_timeout_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="took more than 0.01 s: raise timeout_s"):
        compile_exported(b"", 8, timeout_s=0.01)


def test_programs_share_a_process_that_outlives_a_failure(
    decode: CompiledProgram,
) -> None:
    exported = export(jit_decode(ABSTRACT), *ARGS)
    with Compiler() as compiler:
        found = [compiler.compile(exported, 8)]
        child = compiler._child
        with pytest.raises(RuntimeError, match="compiling on 8 CPU devices failed"):
            compiler.compile(b"no program", 8)
        found.append(compiler.compile(exported, 8))
        assert compiler._child is child
    wanted = list_collectives(decode.after_spmd, ABSTRACT.shape)
    for program in found:
        assert list_collectives(program.after_spmd, ABSTRACT.shape) == wanted
        assert program.peak_bytes == decode.peak_bytes
    assert child is not None and child.returncode is not None


def test_the_peak_holds_arguments_results_and_scratch(decode: CompiledProgram) -> None:
    held = decode.argument_bytes + decode.temp_bytes + BATCH * D_MODEL * 2
    assert decode.peak_bytes == held + 16  # the cache is in place; a tuple of two


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="target is 'tpu'.*'cpu' or 'h100'"):
        Compiler("tpu")


def test_what_has_to_be_installed_is_said_in_one_line(monkeypatch) -> None:
    found = {"jax-cuda12-plugin": jax.__version__, "jax-cuda12-pjrt": None}
    monkeypatch.setattr("lts.compiler._version", found.get)
    line = missing("h100")
    assert line is not None and "\n" not in line
    assert "jax-cuda12-pjrt missing" in line
    assert f"jax-cuda12-plugin=={jax.__version__}" in line
    with pytest.raises(RuntimeError, match="pip install"):
        Compiler("h100")
    assert missing("cpu") is None
    found["jax-cuda12-pjrt"] = jax.__version__
    assert missing("h100") is None


@pytest.mark.skipif(missing("h100") is not None, reason="no GPU compiler here")
def test_gpus_that_are_not_there_are_compiled_for(decode: CompiledProgram) -> None:
    exported = export(jit_decode(ABSTRACT), *ARGS, target="h100")
    with Compiler("h100") as compiler:
        program = compiler.compile(exported, 8)
        with pytest.raises(RuntimeError, match="12 GPUs do not fill nodes of 8"):
            compiler.compile(exported, 12)
    after = list_collectives(decode.after_spmd, ABSTRACT.shape)
    assert list_collectives(program.after_spmd, ABSTRACT.shape) == after
    final = list_collectives(program.final, ABSTRACT.shape)
    # no promotion to float32, as in CPU programs
    assert [(c.kind, c.nbytes) for c in final] == [(c.kind, c.nbytes) for c in after]
    assert "is_scheduled=true" in program.final
    assert program.argument_bytes == decode.argument_bytes
    assert program.alias_bytes == decode.alias_bytes
