"""XLA as an oracle: an exported program to HLO text and bytes, without its devices.

    with Compiler("h100") as compiler:
        program = compiler.compile(exported.serialize(), num_devices=16)

XLA's CPU backend can pose as any number of devices, but only before JAX has started in
a process; its GPU compiler needs no GPU, but a description of one; and a compiler that
crashes ends its process. So a child (`lts.compile_worker`) does the work, and serves
all programs of a `Compiler` one after the other: starting it takes longer than most
compilations. Nothing is run.
"""

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from lts.hlo import rematerialization_warnings

TARGETS = ("cpu", "h100")
"""What can be compiled for: forced CPU devices, or H100 SXM GPUs, 8 to a node."""

_PLUGIN = ("jax-cuda12-plugin", "jax-cuda12-pjrt")
_NUM_ERROR_LINES = 15
_FRAME = re.compile(r"\s*@\s+0x[0-9a-f]+ ")  # of the stack of a crash
_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=\S*")


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What XLA made of a program; bytes are those of one device.

    Attributes:
      target: that it was compiled for.
      after_spmd: HLO text right after SPMD partitioning; equal to `final` on one
        device, which has no such pass. Compare plans with this one: it is the same for
        all targets, while backends change types and kinds of collectives later on.
      final: HLO text of the executable; for GPUs in the order of its schedule.
      argument_bytes: all arguments.
      output_bytes: all results, with those that alias arguments and XLA's own tuple.
      temp_bytes: scratch; that of a CPU program is not what a GPU takes.
      alias_bytes: results written in place into donated arguments.
      argument_local_bytes: each flat argument, in order; 0 for one that the exported
        program dropped because nothing uses it.
      result_local_bytes: each flat result, in order.
      warnings: where XLA replicates a value to reshard it
        (`lts.hlo.rematerialization_warnings`).
      jax_version: of the process that compiled.
    """

    target: str
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

    @property
    def peak_bytes(self) -> int:
        """Most that is held at once.

        Every version's GPU figure is this sum to within 1 KiB; the peak that XLA gives
        for CPUs lacks the scratch.
        """
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temp_bytes


def platform_of(target: str) -> str:
    """The platform to export for, "cpu" or "cuda".

    Raises:
      ValueError: if there is no such target.
    """
    if target not in TARGETS:
        known = " or ".join(map(repr, TARGETS))
        raise ValueError(f"target is {target!r}; this version compiles for {known}")
    return "cpu" if target == "cpu" else "cuda"


def missing(target: str) -> str | None:
    """What has to be installed before a target can be compiled for; None if nothing."""
    if platform_of(target) == "cpu":
        return None
    found = {wheel: _version(wheel) for wheel in _PLUGIN}
    if all(own == jax.__version__ for own in found.values()):
        return None
    have = ", ".join(f"{wheel} {own or 'missing'}" for wheel, own in found.items())
    wheels = " ".join(f"{wheel}=={jax.__version__}" for wheel in _PLUGIN)
    return (
        f"compiling for {target} takes XLA's GPU compiler in the version of jax ({have}"
        f"): pip install 'learning-to-shard[h100]', or only pip install --no-deps "
        f"{wheels}"
    )


def _version(wheel: str) -> str | None:
    try:
        return version(wheel)
    except PackageNotFoundError:
        return None


def compile_exported(
    exported: bytes | bytearray,
    num_devices: int,
    *,
    target: str = "cpu",
    timeout_s: float = 600,
) -> CompiledProgram:
    """`Compiler.compile` of a single program."""
    with Compiler(target, timeout_s=timeout_s) as compiler:
        return compiler.compile(exported, num_devices)


class Compiler:
    """Compiles any number of programs in one child process, started at the first.

    Args:
      target: one of `TARGETS`.
      timeout_s: seconds after which one compilation is given up.

    Raises:
      ValueError: if there is no such target.
      RuntimeError: if something has to be installed for it; the message says what.
    """

    def __init__(self, target: str = "cpu", *, timeout_s: float = 600) -> None:
        if (line := missing(target)) is not None:
            raise RuntimeError(line)
        self.target = target
        self.timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._num_devices = 0

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child; the next program starts another."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        self._child = None

    def compile(self, exported: bytes | bytearray, num_devices: int) -> CompiledProgram:
        """Compile a serialised `jax.export.Exported` for `num_devices` devices.

        Export it for the target's platform (`platform_of`), with NamedShardings over
        one mesh of `num_devices` with Auto axes; the mesh may be abstract, so the
        caller needs no devices:

            jitted = jax.jit(fn, in_shardings=..., out_shardings=..., keep_unused=True)
            exported = jax.export.export(jitted, platforms=("cpu",))(*args).serialize()

        Without `keep_unused=True`, arguments that nothing uses are no part of the
        program. Containers of a class of one's own must be flattened first. Donation is
        kept.

        Raises:
          ValueError: if `num_devices` is below 1.
          RuntimeError: if the compilation fails (the child's last lines are in the
            message) or takes more than `timeout_s`.
        """
        if num_devices < 1:
            raise ValueError(
                f"cannot compile on {num_devices} devices: pass the size of the mesh "
                "that the program was exported for."
            )
        with tempfile.TemporaryDirectory(prefix="lts-compile-") as name:
            folder = Path(name)
            (folder / "program.bin").write_bytes(exported)
            answer = self._ask(name, num_devices)
            if answer != b"done\n":
                raise RuntimeError(self._failure(folder, num_devices, answer))
            report: dict[str, Any] = json.loads((folder / "compiled.json").read_text())
            log = (folder / "log.txt").read_text(errors="replace")
            return CompiledProgram(
                target=self.target,
                after_spmd=(folder / "after_spmd.txt").read_text(),
                final=(folder / "final.txt").read_text(),
                argument_bytes=report["argument_bytes"],
                output_bytes=report["output_bytes"],
                temp_bytes=report["temp_bytes"],
                alias_bytes=report["alias_bytes"],
                argument_local_bytes=tuple(report["argument_local_bytes"]),
                result_local_bytes=tuple(report["result_local_bytes"]),
                warnings=tuple(rematerialization_warnings(log)),
                jax_version=report["jax_version"],
            )

    def _ask(self, folder: str, num_devices: int) -> bytes | None:
        """The child's answer, b"" if it died; None if time was up."""
        if num_devices != self._num_devices or self._child is None:
            self.close()
            self._num_devices = num_devices
            self._child = self._started(num_devices)
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(folder.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return b""
        ready, _, _ = select.select([stdout], [], [], self.timeout_s)
        return stdout.readline() if ready else None

    def _started(self, num_devices: int) -> "subprocess.Popen[bytes]":
        # -P: a file of the current folder must not take the place of a library
        command = [sys.executable, "-P", "-m", "lts.compile_worker"]
        return subprocess.Popen(
            [*command, self.target, str(num_devices)],
            env=_child_environment(num_devices),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # until the child sends it to a folder's log
        )

    def _failure(self, folder: Path, num_devices: int, answer: bytes | None) -> str:
        where = f"compiling on {num_devices} {self.target.upper()} devices"
        if answer is None:
            self.close()
            return (
                f"{where} took more than {self.timeout_s:g} s: raise timeout_s, or "
                "compile fewer layers (a scan over layers compiles its body once)."
            )
        log, status = folder / "log.txt", ""
        text = log.read_text(errors="replace") if log.exists() else ""
        if not answer:
            assert self._child is not None
            _, early = self._child.communicate()
            status = f" with status {self._child.returncode}"
            text = early.decode(errors="replace") + text
            self.close()
        lines = [x for x in text.strip().splitlines() if not _FRAME.match(x)]
        last = "\n  ".join(lines[-_NUM_ERROR_LINES:]) or "(no output)"
        return (
            f"{where} failed{status}:\n  {last}\nExport with platforms="
            f"('{platform_of(self.target)}',), for a mesh of num_devices with Auto "
            "axes, in the jax version that is installed here; a negative status is a "
            "crash of the compiler: then try another plan or jax version."
        )


def _child_environment(num_devices: int) -> dict[str, str]:
    environment = dict(os.environ)
    flags = _FORCED_DEVICES.sub("", environment.get("XLA_FLAGS", "")).strip()
    package_root = str(Path(__file__).resolve().parents[1])
    search_path = [package_root, *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(search_path),
        "XLA_FLAGS": flags,
        # also for GPUs: as a platform of its own, the plugin looks for a driver
        "JAX_PLATFORMS": "cpu",
        # as a variable, it holds from the first use of JAX by any module
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        # XLA's warnings are part of the result
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    return environment
