"""Shardy as an oracle: factor rules, propagation and collectives of StableHLO text.

    with Shardy() as shardy:
        text = stablehlo_text(jax.jit(fn), *args)
        ops = shardy.factor_rules(text)
        found = shardy.propagated(text, {"x": 2}, [[["x"], []], None])

Shardy runs in one worker process (`lts.shardy_worker`) that serves all requests of a
`Shardy`; no devices are needed. Answers are kept in memory and on disk, by text and
versions of jax and jaxlib.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import jax
from jax.export import export

Factors = tuple[int, ...]
"""Factors of one dim, major first; several where a reshape merged dims."""

Spec = Sequence[Sequence[str]]
"""Per dim, the mesh axes that shard it, major first."""

_FORMAT = 2  # of answers on disk: raise it when the worker says something else
_JAXLIB = version("jaxlib")
_NUM_ERROR_LINES = 8
_WORKER = Path(__file__).with_name("shardy_worker.py")
_PROBE = """module {
  func.func public @main(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
    %0 = stablehlo.sine %a : tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}"""


class ShardyError(RuntimeError):
    """Shardy could not answer; the message says what it met and what to do."""


@dataclass(frozen=True, kw_only=True)
class ShardyRule:
    """Shardy's rule of one operation.

    Attributes:
      operands, results: per array and dim, the factors on it.
      sizes: extent of every factor.
      reduction: factors that leave partial sums when sharded.
      need_replication: factors along which operands must be whole.
      permutation: factors along which shards exchange elements when sharded.
    """

    operands: tuple[tuple[Factors, ...], ...]
    results: tuple[tuple[Factors, ...], ...]
    sizes: tuple[int, ...]
    reduction: Factors
    need_replication: Factors
    permutation: Factors


@dataclass(frozen=True, kw_only=True)
class ShardyOp:
    """One operation of a program, in the order of the text.

    Attributes:
      name: as in `stablehlo.dot_general`.
      operands, results: numbers of its values; argument i of `main` is value i.
      depth: 0 in the body of a function, more inside loops, branches and combiners.
      rule: None for operations that Shardy has no rule for.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    depth: int
    rule: ShardyRule | None


@dataclass(frozen=True, kw_only=True)
class ShardyCollective:
    """A collective that Shardy inserts.

    Attributes:
      kind: all_gather, all_reduce, all_to_all, collective_permute, reduce_scatter, or
        all_slice, which moves nothing.
      axes: mesh axes that it names.
      nbytes: bytes of its result on one device.
    """

    kind: str
    axes: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Propagated:
    """Shardings of `main` after propagation: axes per dim of every array.

    Part of an axis is named `axis:(before)size`. Collectives inside a loop, or in a
    function that is called twice, stand here once.
    """

    arguments: tuple[tuple[tuple[str, ...], ...], ...]
    results: tuple[tuple[tuple[str, ...], ...], ...]
    collectives: tuple[ShardyCollective, ...]


def cache_folder() -> Path:
    """`$LTS_CACHE`, else `lts` in the user's cache folder."""
    if chosen := os.environ.get("LTS_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lts"


def stablehlo_text(jitted: Any, *args: Any) -> str:
    """A jitted function as text that Shardy can read.

    Lowered for TPU, which needs no plugin and makes few custom calls. Operations of the
    chlo dialect, which Shardy has no rules for, are written out by `jax.export`.

    Args:
      jitted: result of `jax.jit`; its shardings may be over an `AbstractMesh` with Auto
        axes.
      args: arrays or `jax.ShapeDtypeStruct`s.
    """
    text = jitted.trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    if "chlo." not in text:
        return text
    return export(jitted, platforms=("tpu",))(*args).mlir_module()


class Shardy:
    """One worker process and the answers that it gave.

    Args:
      cache: folder of answers; `cache_folder()` / "shardy" if None.
      command: how to start the worker; for tests.
      timeout_s: seconds after which a request is given up.
    """

    def __init__(
        self,
        *,
        cache: Path | None = None,
        command: Sequence[str] = (sys.executable, "-P", str(_WORKER)),
        timeout_s: float = 120,
    ) -> None:
        self.cache = cache or cache_folder() / "shardy"
        self.command = tuple(command)
        self.timeout_s = timeout_s
        self._answers: dict[str, Any] = {}
        self._worker: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> "Shardy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def factor_rules(self, stablehlo: str) -> tuple[ShardyOp, ...]:
        """Every operation of a program with its rule.

        The body of a function that is called twice stands there once.

        Raises:
          ShardyError: if the text cannot be read, or Shardy fails on it.
        """
        found = self._ask({"task": "rules", "stablehlo": stablehlo})
        return tuple(
            ShardyOp(
                name=op["name"],
                operands=tuple(op["operands"]),
                results=tuple(op["results"]),
                depth=op["depth"],
                rule=op["rule"] and ShardyRule(**_tuples(op["rule"])),
            )
            for op in found
        )

    def propagated(
        self,
        stablehlo: str,
        axis_sizes: Mapping[str, int] | None = None,
        specs: Sequence[Spec | None] | None = None,
    ) -> Propagated:
        """Shardings after propagation, and the collectives that they need.

        Args:
          stablehlo: a program; one lowered with shardings names mesh and shardings
            itself, then leave out the rest.
          axis_sizes: the mesh, for a program without one.
          specs: per argument of `main`; None leaves an argument open, as does a dim
            without axes.

        Raises:
          ShardyError: if the text cannot be read, or Shardy fails on it.
        """
        request: dict[str, Any] = {"task": "propagate", "stablehlo": stablehlo}
        if axis_sizes is not None and specs is not None:
            listed = [spec and [list(dim) for dim in spec] for spec in specs]
            request |= {"axis_sizes": dict(axis_sizes), "specs": listed}
        found = self._ask(request)
        return Propagated(
            arguments=_tuples(found["arguments"]),
            results=_tuples(found["results"]),
            collectives=tuple(
                ShardyCollective(**_tuples(entry)) for entry in found["collectives"]
            ),
        )

    def close(self) -> None:
        """End the worker; the next request starts another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _ask(self, request: dict[str, Any]) -> Any:
        """The answer from memory, from disk, or from the worker."""
        line = json.dumps(request)
        versions = f"{_FORMAT} {jax.__version__} {_JAXLIB}"
        key = hashlib.sha256(f"{versions}\n{line}".encode()).hexdigest()
        if key in self._answers:
            return self._answers[key]
        path = self.cache / key[:2] / f"{key}.json"
        answer = _read(path)
        if answer is None:
            answer = self._work(line)
            _write(path, json.dumps(answer))
        self._answers[key] = answer
        return answer

    def _work(self, line: str) -> Any:
        """Send one line to the worker; start it first if there is none."""
        timed_out = threading.Event()

        def give_up() -> None:
            timed_out.set()
            if self._worker is not None:
                self._worker.kill()

        timer = threading.Timer(self.timeout_s, give_up)
        timer.start()
        try:
            worker = self._started()
            assert worker.stdin is not None and worker.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(line + "\n")
                worker.stdin.flush()
            reply = worker.stdout.readline()
        finally:
            timer.cancel()
        if not reply:
            raise self._death(timed_out.is_set())
        found = json.loads(reply)
        if "error" in found:
            lines = " ".join(found["error"].split())
            raise ShardyError(
                f"Shardy of jaxlib {_JAXLIB} refused the program: {lines}. "
                "Pass what lts.shardy.stablehlo_text gives in this version of jax."
            )
        return found["answer"]

    def _started(self) -> "subprocess.Popen[str]":
        if self._worker is None:
            self._errors = tempfile.TemporaryFile("w+", errors="replace")
            self._worker = subprocess.Popen(
                self.command,
                env=dict(os.environ) | {"JAX_PLATFORMS": "cpu"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
            )
            assert self._worker.stdout is not None
            self._worker.stdout.readline()  # it says its version when it is ready
        return self._worker

    def _death(self, timed_out: bool) -> ShardyError:
        """What the end of the worker means; its last lines are in the message."""
        assert self._worker is not None and self._errors is not None
        status = self._worker.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()[-_NUM_ERROR_LINES:]
        self.close()
        if timed_out:
            return ShardyError(
                f"Shardy took more than {self.timeout_s:g} s: raise timeout_s, or pass "
                "a smaller program."
            )
        said = "\n  ".join(lines) or "(no output)"
        return ShardyError(
            f"Shardy of jaxlib {_JAXLIB} ended its process with status "
            f"{status}:\n  {said}\nThe next request starts another. A negative status "
            "is a crash: try another program or jax version, or use our own rules."
        )


def available(shardy: Shardy | None = None) -> str | None:
    """Why Shardy cannot be used here, in one line; None if it can.

    Asks for a small program's rules and propagation; of `shardy`, if given.
    """
    with Shardy() if shardy is None else contextlib.nullcontext(shardy) as asked:
        try:
            asked.factor_rules(_PROBE)
            asked.propagated(_PROBE, {"x": 2}, [[["x"], []]])
        except ShardyError as error:
            return " ".join(str(error).split())
    return None


def _tuples(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, dict):
        return {key: _tuples(entry) for key, entry in value.items()}
    return value


def _read(path: Path) -> Any:
    """What a file holds; None if there is none, or its writing was cut short."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file at once; a cache that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
