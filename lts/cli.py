"""The command line: parse, call, print.

Exit status: 0 done; 1 no feasible plan, or a plan that failed to compile or (with
`verify --strict`) differs; 2 bad input, in one line on stderr; 130 after Ctrl-C.
`LTS_TRACEBACK=1` shows where an error comes from. JAX runs on the CPU unless
`JAX_PLATFORMS` says otherwise: a search needs no GPU.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from lts.api import DEFAULT_BUDGET, DEFAULT_METHOD, price, search
from lts.hardware import Cluster
from lts.methods import METHODS
from lts.models import (
    Decoder,
    active_params,
    kv_bytes_per_token,
    load,
    names,
    published_dtype,
)
from lts.plan import SERVINGS, Plan
from lts.prepare import NoFeasiblePlanError
from lts.report.listing import clusters_text, models_text, verification_text
from lts.report.progress import search_progress
from lts.report.text import plan_text
from lts.workload import Workload

DONE, INFEASIBLE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: arguments without the program's name; None for those of the process.

    Returns:
      The exit status.
    """
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal lacks
    try:
        args = _parser().parse_args(argv)
        status = args.run(args)
        sys.stdout.flush()
        return status
    except NoFeasiblePlanError as error:
        return _fail(error, INFEASIBLE)
    except (ValueError, TypeError) as error:
        return _fail(error, BAD_INPUT)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # else the interpreter would complain when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _fail(error: Exception, status: int) -> int:
    if os.environ.get("LTS_TRACEBACK"):
        raise error
    print(f"lts: {' '.join(str(error).split())}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lts",
        description="Find how to split LLM inference over a GPU cluster.",
        epilog="exit status: 0 done, 1 no feasible plan, 2 bad input",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(run: Callable[[argparse.Namespace], int], words: str) -> _Parser:
        name = run.__name__.removeprefix("_run_")
        command = commands.add_parser(
            name, help=words, description=words, allow_abbrev=False
        )
        command.set_defaults(run=run)
        return command

    found = add(_run_search, "find the best plan to serve a model on a cluster")
    _add_problem(found)
    option = found.add_argument
    option("--method", default=DEFAULT_METHOD, help=" | ".join(METHODS))
    option("--budget", type=int, default=DEFAULT_BUDGET, help="candidates to score")
    option("--seed", type=int, default=0, help="same seed, same plan")
    option("--max-stages", type=int, metavar="N", help="pipeline stages at most")
    option("--verify", action="store_true", help="compile it, too, and compare")
    _add_output(found)

    priced = add(_run_price, "price degrees that you already run")
    _add_problem(priced)
    option = priced.add_argument
    for name, words in DEGREES.items():
        option(_flag(name), type=int, metavar="N", help=words)
    _add_output(priced)

    shown = add(_run_show, "show all of a saved plan")
    shown.add_argument("plan", help="a plan.json")

    verified = add(_run_verify, "compile a saved plan, compare with what it predicts")
    option = verified.add_argument
    option("plan", help="a plan.json")
    option("--target", default="cpu", help="what to compile for: cpu")
    option("--strict", action="store_true", help="exit with 1 if anything differs")
    option("--json", action="store_true", help="print one JSON object")

    for run, what in (_run_models, "models"), (_run_clusters, "clusters"):
        option = add(run, f"list the {what} that come with lts").add_argument
        option("--json", action="store_true", help="print one JSON object")
    return parser


def _add_problem(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    count: dict[str, Any] = {"type": int, "metavar": "N"}
    limit: dict[str, Any] = {"type": float, "metavar": "X"}
    option("model", help="name (see lts models), or path of a Hugging Face config.json")
    option("--cluster", required=True, help="NAME:NODESxGPUS, or the path of a .yaml")
    option("--input-len", required=True, help="tokens of a prompt", **count)
    option(
        "--output-len", required=True, help="tokens generated; 0: prefill only", **count
    )
    option("--ttft-ms", help="limit on the time to first token", **limit)
    option("--tpot-ms", help="limit on the time per further token", **limit)
    option("--concurrency", help="requests in flight; else found", **count)
    skew = "tokens of the busiest device of experts over the mean; default 1"
    option("--routing-skew", type=float, default=1.0, metavar="X", help=skew)
    option("--serving", default="colocated", help=" | ".join(SERVINGS))
    dtypes = "bf16, fp16, fp32 or fp8; else the config's own"
    option("--weight-dtype", type=_dtype, metavar="D", help=dtypes)
    option("--kv-dtype", type=_dtype, metavar="D", help=dtypes)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, metavar="plan.json", help="save the plan")
    command.add_argument("--json", action="store_true", help="print the plan as JSON")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _dtype(text: str) -> str:
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        known = ", ".join(f"{short} ({name})" for short, name in DTYPES.items())
        raise argparse.ArgumentTypeError(f"unknown dtype {text!r}; known: {known}")
    return name


def _problem(args: argparse.Namespace) -> tuple[Decoder, dict[str, Any]]:
    """The model, and what `search` and `price` take alike."""
    if ":" in args.model and not Path(args.model).exists():
        raise ValueError(
            f"{args.model!r} looks like module:function; this version searches "
            "functions from Python only: lts.search(function, args, cluster=...)"
        )
    options = {
        "cluster": Cluster.parse(args.cluster),
        "workload": Workload(
            input_len=args.input_len,
            output_len=args.output_len,
            ttft_ms=args.ttft_ms,
            tpot_ms=args.tpot_ms,
            concurrency=args.concurrency,
            routing_skew=args.routing_skew,
        ),
        "serving": args.serving,
        "weight_dtype": args.weight_dtype,
        "kv_dtype": args.kv_dtype,
    }
    return load(args.model), options


def _run_search(args: argparse.Namespace) -> int:
    model, options = _problem(args)
    _check_writable(args.out)
    with search_progress(args.budget) as on_progress:
        plan = search(
            model,
            **options,
            method=args.method,
            budget=args.budget,
            seed=args.seed,
            max_stages=args.max_stages,
            on_progress=on_progress,
        )
    return _deliver(plan, args, verify=args.verify)


def _run_price(args: argparse.Namespace) -> int:
    model, options = _problem(args)
    degrees = {name: getattr(args, name) for name in DEGREES}
    degrees = {name: value for name, value in degrees.items() if value is not None}
    if not degrees:
        raise ValueError(
            f"price needs at least one of {', '.join(map(_flag, DEGREES))}"
        )
    _check_writable(args.out)
    return _deliver(price(model, **options, degrees=degrees), args)


def _run_show(args: argparse.Namespace) -> int:
    print(plan_text(Plan.load(args.plan).to_dict(), full=True))
    return DONE


def _run_verify(args: argparse.Namespace) -> int:
    plan = Plan.load(args.plan)
    found = _verified(plan, args.target)
    if found is None:
        return INFEASIBLE
    print(_json(found) if args.json else verification_text(found))
    return INFEASIBLE if args.strict and not found["ok"] else DONE


def _run_models(args: argparse.Namespace) -> int:
    found = [
        {
            "name": model.name,
            "num_params": model.num_params,
            "active_params": active_params(model.config),
            "num_layers": model.config.num_hidden_layers,
            "dtype": published_dtype(model.config),
            "kv_bytes_per_token": kv_bytes_per_token(model.config),
            "max_position_embeddings": model.config.max_position_embeddings,
        }
        for model in map(load, names())
    ]
    print(_json({"models": found}) if args.json else models_text(found))
    return DONE


def _run_clusters(args: argparse.Namespace) -> int:
    found = [Cluster.preset(name).to_dict() for name in Cluster.presets()]
    print(_json({"clusters": found}) if args.json else clusters_text(found))
    return DONE


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=True)


def _verified(plan: Plan, target: str) -> dict[str, Any] | None:
    """The verification; None, said on stderr, if XLA does not compile the plan."""
    try:
        return plan.verify(target=target).to_dict()
    except RuntimeError as error:
        _fail(error, INFEASIBLE)
        return None


def _deliver(plan: Plan, args: argparse.Namespace, *, verify: bool = False) -> int:
    """Save, then verify, then print."""
    data, status, found = plan.to_dict(), DONE, None
    if args.out is not None:
        status = _save(plan, args.out)
    if verify:
        found = _verified(plan, "cpu")
        status = status or (INFEASIBLE if found is None else DONE)
    if args.json:
        print(_json({**data, "verification": found} if verify else data))
        return status
    print(plan_text(data))
    if found is not None:
        print(f"\n{verification_text(found)}")
    return status


def _check_writable(path: Path | None) -> None:
    """Refuse a place that cannot be written to before the search, not after it."""
    if path is None:
        return
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write plan '{path}': {error.strerror}; give --out a file in a "
            "folder that exists and that you may write to"
        ) from None
    if not existed:
        path.unlink()


def _save(plan: Plan, path: Path) -> int:
    """Save the plan; where that fails after all, into a temporary file."""
    try:
        plan.save(path)
        return DONE
    except OSError as error:
        with tempfile.NamedTemporaryFile(
            prefix="lts-plan-", suffix=".json", delete=False
        ) as file:
            plan.save(file.name)
        reason = f"cannot write plan '{path}': {error.strerror}; it is in {file.name}"
        return _fail(ValueError(reason), BAD_INPUT)
