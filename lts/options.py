"""Options of the command line, and what is read from them."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lts.api import DEFAULT_BUDGET, DEFAULT_METHOD
from lts.cost.profile import names as engine_names
from lts.methods import METHODS
from lts.plan import SERVINGS
from lts.workload import Workload

DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
}
DEGREES = {
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "dp": "data parallel",
    "cp": "context parallel",
    "moe_tp": "ways of an expert's hidden index",
    "moe_ep": "ways of experts, tokens travel to them",
}
LENGTHS = ("input_len", "output_len")
OF_MODELS = (
    *LENGTHS,
    "ttft_ms",
    "tpot_ms",
    "concurrency",
    "weight_dtype",
    "kv_dtype",
    "engine",
)
"""Options that only a model to serve has."""
OF_FUNCTIONS = ("args", "weights", "state")
"""Options that only a function has."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def add_search(command: argparse.ArgumentParser) -> None:
    """Options of a search."""
    _add_problem(command)
    option = command.add_argument
    option("--method", default=DEFAULT_METHOD, help=" | ".join(METHODS))
    option("--budget", type=int, default=DEFAULT_BUDGET, help="candidates to score")
    option("--seed", type=int, default=0, help="same seed, same plan")
    option("--max-stages", type=int, metavar="N", help="pipeline stages at most")
    _add_output(command)


def add_price(command: argparse.ArgumentParser) -> None:
    """Options of a price."""
    _add_problem(command)
    for name, words in DEGREES.items():
        command.add_argument(flag(name), type=int, metavar="N", help=words)
    _add_output(command)


def add_verify(command: argparse.ArgumentParser) -> None:
    """Options of a verification."""
    option = command.add_argument
    option("plan", help="a plan.json")
    option("--target", default="cpu", help="what to compile for: cpu or h100")
    option("--strict", action="store_true", help="exit with 1 if anything differs")
    option("--json", action="store_true", help="print one JSON object")
    words = "module:function that the plan is of; else the one that it was found by"
    option("--function", metavar="M:F", help=words)
    option("--args", metavar="M:F", help="callable that returns its arguments")


def add_calibrate(command: argparse.ArgumentParser) -> None:
    """Options of a calibration."""
    option = command.add_argument
    words = "cluster file; the calibration goes to my.calibration.yaml beside it"
    option("--out", type=Path, metavar="my.yaml", required=True, help=words)
    option("--name", help="of the cluster; else the file's")
    option("--quick", action="store_true", help="fewer sizes")
    option("--json", action="store_true", help="print one JSON object")


def _add_problem(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    count: dict[str, Any] = {"type": int, "metavar": "N"}
    limit: dict[str, Any] = {"type": float, "metavar": "X"}
    option(
        "model",
        help="name (see lts models), path of a Hugging Face config.json, or "
        "module:function (also file.py:function)",
    )
    option("--cluster", required=True, help="NAME:NODESxGPUS, or the path of a .yaml")
    option("--input-len", help="tokens of a prompt", **count)
    option("--output-len", help="tokens generated; 0: prefill only", **count)
    option("--ttft-ms", help="limit on the time to first token", **limit)
    option("--tpot-ms", help="limit on the time per further token", **limit)
    option("--concurrency", help="requests in flight; else found", **count)
    skew = "tokens of the busiest device of experts over the mean; default 1"
    option("--routing-skew", type=float, default=1.0, metavar="X", help=skew)
    option("--serving", default="colocated", help=" | ".join(SERVINGS))
    dtypes = "bf16, fp16, fp32 or fp8; else the config's own"
    option("--weight-dtype", type=dtype_of, metavar="D", help=dtypes)
    option("--kv-dtype", type=dtype_of, metavar="D", help=dtypes)
    engines = f"what serves it: {', '.join(engine_names())}; default middle"
    option("--engine", metavar="E", help=engines)
    words = "callable that returns a function's arguments; else FUNCTION_args beside it"
    option("--args", metavar="M:F", help=words)
    words = "of a function: arguments that hold parameters, separated by commas"
    option("--weights", metavar="NAMES", help=words)
    words = "of a function: arguments that come back changed; NAME or NAME=out/1"
    option("--state", metavar="NAMES", help=words)
    words = "how often while loops of unknown length run: N, or file.py:line=N"
    option("--trips", action="append", metavar="N", help=words)
    words = "error (default), or replicate: primitives without a rule"
    option("--on-unknown", default="error", metavar="WHAT", help=words)


def _add_output(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    option("--verify", action="store_true", help="compile it, too, and compare")
    option("--out", type=Path, metavar="plan.json", help="save the plan")
    option("--json", action="store_true", help="print the plan as JSON")


def flag(name: str) -> str:
    """`--moe-ep` for `moe_ep`."""
    return "--" + name.replace("_", "-")


def dtype_of(text: str) -> str:
    """A dtype by its short or its own name."""
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        known = ", ".join(f"{short} ({name})" for short, name in DTYPES.items())
        raise argparse.ArgumentTypeError(f"unknown dtype {text!r}; known: {known}")
    return name


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload of a model to serve.

    Raises:
      ValueError: if a length is missing, or an option of functions is given.
    """
    missing = [flag(name) for name in LENGTHS if getattr(args, name) is None]
    if missing:
        raise ValueError(
            f"the following arguments are required: {', '.join(missing)}: "
            f"{args.model} is a model to serve"
        )
    refuse(args, OF_FUNCTIONS[1:], "a model to serve says itself what they are")
    return Workload(
        input_len=args.input_len,
        output_len=args.output_len,
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
        concurrency=args.concurrency,
        routing_skew=args.routing_skew,
    )


def refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse options that mean nothing here.

    Raises:
      ValueError: naming those that were given.
    """
    given = [flag(name) for name in names if getattr(args, name) is not None]
    if given:
        raise ValueError(f"drop {', '.join(given)}: {why}")


def names_of(text: str | None) -> tuple[str, ...]:
    """`a,b` as a tuple; nothing for None."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def state_of(text: str | None) -> dict[str, str]:
    """`cache=out/1,h`: names, each with its result or ""."""
    pairs = (name.partition("=") for name in names_of(text))
    return {name: result for name, _, result in pairs}


def trips_of(given: Sequence[str] | None) -> int | Mapping[str, int] | None:
    """`--trips 128`, or any number of `--trips file.py:line=128`.

    Raises:
      ValueError: for anything else, or both.
    """
    if not given:
        return None
    named = {}
    for text in given:
        source, _, count = text.rpartition("=")
        if not count.isdigit() or int(count) < 1 or (not source and len(given) > 1):
            raise ValueError(
                f"cannot read --trips {text}: expected a positive number for all while "
                "loops, or file.py:line=NUMBER for each"
            )
        named[source] = int(count)
    return named[""] if "" in named else named
