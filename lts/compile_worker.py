"""Compiles exported programs as it is told, in a process of its own.

    python -m lts.compile_worker TARGET NUM_DEVICES

One folder per line in, "done" or "failed" per line out. In a folder: `program.bin` in;
`compiled.json`, `after_spmd.txt` and `final.txt` out, `log.txt` with all that was
printed meanwhile. `lts.compiler` is the other side. Nothing is run.
"""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.export import Exported, deserialize
from jax.extend.backend import get_backend, get_compile_options
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.xla_client import DeviceList

from lts.hlo import entry_bytes

GPUS_PER_NODE = 8
CHIPS = {"h100": Path(__file__).parent / "targets" / "h100_sxm.txtpb"}
"""GPUs that XLA compiles for without having one, and their descriptions."""


def _devices(target: str, num_devices: int) -> Sequence[Any]:
    """Forced CPU devices, or GPUs that are described, not present."""
    if target not in CHIPS:
        return get_backend("cpu").devices()
    nodes, rest = divmod(num_devices, GPUS_PER_NODE)
    if nodes and rest:
        raise ValueError(
            f"{num_devices} GPUs do not fill nodes of {GPUS_PER_NODE}: beyond one node "
            "only whole nodes can be compiled for."
        )
    per_node = min(num_devices, GPUS_PER_NODE)
    description = topologies.get_topology_desc(
        platform="cuda",
        target_config=CHIPS[target].read_text(),
        topology=f"1x{max(nodes, 1)}x{per_node}",  # slices x nodes x GPUs
    )
    return description.devices


def _executable(exported: Exported, devices: Sequence[Any], dump: Path) -> Any:
    """What XLA makes of a program; it leaves the text after SPMD in `dump`."""
    client, num_devices = devices[0].client, len(devices)
    options = get_compile_options(
        num_replicas=1,
        num_partitions=num_devices,
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides={
            "xla_dump_to": str(dump),
            "xla_dump_hlo_pass_re": "^spmd-partitioning",
        },
        backend=client,
    )
    # as jax.jit does: XLA chooses the shardings that nobody asked for
    build_options = options.executable_build_options
    build_options.allow_spmd_sharding_propagation_to_parameters = [
        exported.in_shardings_hlo[number] is None
        for number in exported.module_kept_var_idx
    ]
    build_options.allow_spmd_sharding_propagation_to_output = [
        sharding is None for sharding in exported.out_shardings_hlo
    ]
    # Not jax.jit(exported.call): it constrains arguments and results once more, which
    # changes how shardings propagate, and with that the collectives (jax 0.12).
    if devices[0].platform == "cpu":
        module = exported.mlir_module()
        return client.compile_and_load(module, tuple(devices), options)
    with make_ir_context():
        module = ir.Module.parse(exported.mlir_module())
        return client.compile(module, DeviceList(tuple(devices)), options)


def _compile(folder: Path, target: str, devices: Sequence[Any]) -> None:
    """Compile `folder/program.bin`, write what came out beside it."""
    exported = deserialize(bytearray((folder / "program.bin").read_bytes()))
    if exported.nr_devices != len(devices):
        raise ValueError(
            f"asked to compile on {len(devices)} devices a program exported for "
            f"{exported.nr_devices}: pass num_devices={exported.nr_devices}, or export "
            f"it with shardings over a mesh of {len(devices)}."
        )
    platform = "cuda" if target in CHIPS else "cpu"
    if exported.platforms != (platform,):
        raise ValueError(
            f"the program was exported for {exported.platforms}: export it with "
            f"platforms=('{platform}',)."
        )
    dump = folder / "dump"
    executable = _executable(exported, devices, dump)
    final = executable.hlo_modules()[0].to_string()
    after_spmd = final
    if len(devices) > 1:
        dumps = sorted(dump.glob("*after_spmd-partitioning*.txt"))
        if not dumps:
            raise RuntimeError(
                f"jax {jax.__version__} dumped no HLO after a pass named "
                "spmd-partitioning: use a version listed in pyproject.toml."
            )
        after_spmd = dumps[0].read_text()
        shutil.rmtree(dump)
    (folder / "after_spmd.txt").write_text(after_spmd)
    (folder / "final.txt").write_text(final)
    memory = executable.get_compiled_memory_stats()
    kept_bytes, result_bytes = entry_bytes(final)
    local_bytes = dict(zip(exported.module_kept_var_idx, kept_bytes, strict=True))
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


def main(target: str, num_devices: int) -> None:
    """Serve until the input ends; what anything prints goes to the folder's log."""
    answers = os.fdopen(os.dup(1), "w")
    devices: Sequence[Any] = ()
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        try:
            devices = devices or _devices(target, num_devices)
            _compile(folder, target, devices)
            answer = "done"
        except Exception:
            traceback.print_exc()
            answer = "failed"
        sys.stderr.flush()
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
