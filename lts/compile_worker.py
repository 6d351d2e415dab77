"""Compile an exported program on forced CPU devices, in a process of its own.

XLA's CPU backend can pose as any number of devices, but only before JAX has started in
a process, and a compiler crash ends it. So the parent (`compile_on_cpu`) hands the
program to a child (`python -m lts.compile_worker FOLDER`) and reads back what XLA made
of it: HLO text after SPMD partitioning and at the end, and bytes per device. Nothing is
run.

In FOLDER: `program.bin` and `num_devices` in, `compiled.json`, `after_spmd.txt` and
`final.txt` out.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.export import deserialize
from jax.extend.backend import get_backend, get_compile_options

from lts.hlo import entry_bytes, rematerialization_warnings

_NUM_ERROR_LINES = 15
_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=\S*")


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What XLA made of a program; bytes are those of one device.

    Attributes:
      after_spmd: HLO text right after SPMD partitioning; equal to `final` on one
        device, which has no such pass. Compare plans with this one: the CPU backend
        promotes bfloat16 collectives to float32 later.
      final: HLO text of the executable.
      argument_bytes: all arguments.
      output_bytes: all results, with those that alias arguments and XLA's own tuple.
      temp_bytes: scratch of the CPU program; a GPU's differs.
      alias_bytes: results written in place into donated arguments.
      argument_local_bytes: each flat argument, in order; 0 for one that the exported
        program dropped because nothing uses it.
      result_local_bytes: each flat result, in order.
      warnings: where XLA replicates a value to reshard it
        (`lts.hlo.rematerialization_warnings`).
      jax_version: of the process that compiled.
    """

    after_spmd: str
    final: str
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    argument_local_bytes: tuple[int, ...]
    result_local_bytes: tuple[int, ...]
    warnings: tuple[str, ...]
    jax_version: str


def compile_on_cpu(
    exported: bytes | bytearray, num_devices: int, *, timeout_s: float = 600
) -> CompiledProgram:
    """Compile a serialised `jax.export.Exported` on `num_devices` CPU devices.

    Export it for CPU, with NamedShardings over one mesh of `num_devices` with Auto
    axes; the mesh may be abstract, so the caller needs no devices:

        jitted = jax.jit(fn, in_shardings=..., out_shardings=..., keep_unused=True)
        exported = jax.export.export(jitted, platforms=("cpu",))(*args).serialize()

    Without `keep_unused=True`, arguments that nothing uses are no part of the program.
    Containers of a class of one's own must be flattened first. Donation is kept.

    Args:
      exported: the serialised program.
      num_devices: devices of the mesh that it was exported for.
      timeout_s: seconds after which the compilation is given up.

    Raises:
      ValueError: if `num_devices` is below 1.
      RuntimeError: if the child fails (its last lines of output are in the message) or
        takes more than `timeout_s`.
    """
    if num_devices < 1:
        raise ValueError(
            f"cannot compile on {num_devices} devices: pass the size of the mesh that "
            "the program was exported for."
        )
    with tempfile.TemporaryDirectory(prefix="lts-compile-") as name:
        folder = Path(name)
        (folder / "program.bin").write_bytes(exported)
        (folder / "num_devices").write_text(str(num_devices))
        # -P: a file of the current folder must not take the place of a library
        command = [sys.executable, "-P", "-m", "lts.compile_worker", name]
        try:
            child = subprocess.run(
                command,
                env=_child_environment(num_devices),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"compiling on {num_devices} CPU devices took more than "
                f"{timeout_s:g} s: raise timeout_s, or compile fewer layers (a scan "
                "over layers compiles its body once)."
            ) from error
        if child.returncode:
            lines = (child.stdout + child.stderr).strip().splitlines()
            last = "\n  ".join(lines[-_NUM_ERROR_LINES:]) or "(no output)"
            raise RuntimeError(
                f"compiling on {num_devices} CPU devices failed with status "
                f"{child.returncode}:\n  {last}\n"
                "Export with platforms=('cpu',), for a mesh of num_devices with Auto "
                "axes, in the jax version that is installed here; a negative status is "
                "a crash of the compiler: then try another plan or jax version."
            )
        report: dict[str, Any] = json.loads((folder / "compiled.json").read_text())
        return CompiledProgram(
            after_spmd=(folder / "after_spmd.txt").read_text(),
            final=(folder / "final.txt").read_text(),
            argument_bytes=report["argument_bytes"],
            output_bytes=report["output_bytes"],
            temp_bytes=report["temp_bytes"],
            alias_bytes=report["alias_bytes"],
            argument_local_bytes=tuple(report["argument_local_bytes"]),
            result_local_bytes=tuple(report["result_local_bytes"]),
            warnings=tuple(rematerialization_warnings(child.stderr)),
            jax_version=report["jax_version"],
        )


def _child_environment(num_devices: int) -> dict[str, str]:
    environment = dict(os.environ)
    flags = _FORCED_DEVICES.sub("", environment.get("XLA_FLAGS", "")).strip()
    package_root = str(Path(__file__).resolve().parents[1])
    search_path = [package_root, *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(search_path),
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        # as a variable, it holds from the first use of JAX by any module
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        # XLA's warnings are part of the result
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    return environment


def _compile(folder: Path) -> None:
    """The child: compile `folder/program.bin`, write what came out beside it."""
    num_devices = int((folder / "num_devices").read_text())
    exported = deserialize(bytearray((folder / "program.bin").read_bytes()))
    if exported.nr_devices != num_devices:
        raise ValueError(
            f"asked to compile on {num_devices} devices a program exported for "
            f"{exported.nr_devices}: pass num_devices={exported.nr_devices}, or export "
            f"it with shardings over a mesh of {num_devices}."
        )
    if exported.platforms != ("cpu",):
        raise ValueError(
            f"the program was exported for {exported.platforms}: export it with "
            "platforms=('cpu',)."
        )
    dump = folder / "dump"
    client = get_backend("cpu")
    options = get_compile_options(
        num_replicas=1,
        num_partitions=num_devices,
        device_assignment=np.arange(num_devices)[np.newaxis],
        env_options_overrides={
            "xla_dump_to": str(dump),
            "xla_dump_hlo_pass_re": "^spmd-partitioning",
        },
        backend=client,
    )
    # as jax.jit does: XLA chooses the shardings that nobody asked for
    kept = exported.module_kept_var_idx
    build_options = options.executable_build_options
    build_options.allow_spmd_sharding_propagation_to_parameters = [
        exported.in_shardings_hlo[number] is None for number in kept
    ]
    build_options.allow_spmd_sharding_propagation_to_output = [
        sharding is None for sharding in exported.out_shardings_hlo
    ]
    # Not jax.jit(exported.call): it constrains arguments and results once more, which
    # changes how shardings propagate, and with that the collectives (jax 0.12).
    executable = client.compile_and_load(
        exported.mlir_module(), tuple(client.devices()), options
    )
    final = executable.hlo_modules()[0].to_string()
    after_spmd = final
    if num_devices > 1:
        dumps = sorted(dump.glob("*after_spmd-partitioning*.txt"))
        if not dumps:
            raise RuntimeError(
                f"jax {jax.__version__} dumped no HLO after a pass named "
                "spmd-partitioning: use a version listed in pyproject.toml."
            )
        after_spmd = dumps[0].read_text()
    (folder / "after_spmd.txt").write_text(after_spmd)
    (folder / "final.txt").write_text(final)
    memory = executable.get_compiled_memory_stats()
    kept_bytes, result_bytes = entry_bytes(final)
    local_bytes = dict(zip(kept, kept_bytes, strict=True))
    report = {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "argument_local_bytes": [
            local_bytes.get(number, 0) for number in range(len(exported.in_avals))
        ],
        "result_local_bytes": result_bytes,
        "jax_version": jax.__version__,
    }
    (folder / "compiled.json").write_text(json.dumps(report))


if __name__ == "__main__":
    _compile(Path(sys.argv[1]))
