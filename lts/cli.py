"""The command line: parse, call, print.

Exit status: 0 done; 1 no feasible plan, or a plan that failed to compile or (with
`verify --strict`) differs; 2 bad input, in one line on stderr; 130 after Ctrl-C.
`LTS_TRACEBACK=1` shows where an error comes from. JAX runs on the CPU unless
`JAX_PLATFORMS` says otherwise: only `calibrate` needs the GPUs.
"""

import argparse
import dataclasses
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import jax

from lts.api import price, search
from lts.calibrate.machine import calibrate, calibration_path, write
from lts.calibration import is_path
from lts.entry import Entry, NoArgumentsError, failure, find, is_entry
from lts.hardware import Cluster
from lts.models import (
    active_params,
    kv_bytes_per_token,
    load,
    names,
    published_dtype,
)
from lts.options import (
    DEGREES,
    OF_MODELS,
    Parser,
    add_calibrate,
    add_price,
    add_search,
    add_verify,
    flag,
    names_of,
    refuse,
    state_of,
    trips_of,
    workload_of,
)
from lts.plan import SERVINGS, Plan
from lts.prepare import NoFeasiblePlanError
from lts.problem import Problem
from lts.report.calibrated import calibrated_text
from lts.report.explain import explain_text, operations
from lts.report.listing import clusters_text, models_text, verification_text
from lts.report.progress import search_progress
from lts.report.text import plan_text
from lts.tracing import UnsupportedOpError
from lts.verify import Verification

DONE, INFEASIBLE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: arguments without the program's name; None for those of the process.

    Returns:
      The exit status.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal lacks
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            args = _parser().parse_args(argv)
            if not os.environ.get("JAX_PLATFORMS") and args.run is not _run_calibrate:
                jax.config.update("jax_platforms", "cpu")
            status = args.run(args)
        sys.stdout.flush()
        return status
    except NoFeasiblePlanError as error:
        return _fail(error, INFEASIBLE)
    except (ValueError, TypeError, UnsupportedOpError) as error:
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
    if isinstance(error, NoArgumentsError):
        print(error.example, file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one line, without the source line that raised it."""
    print(f"lts: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lts",
        description="Find how to split LLM inference over a GPU cluster.",
        epilog="exit status: 0 done, 1 no feasible plan, 2 bad input",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(run: Callable[[argparse.Namespace], int], words: str) -> Parser:
        name = run.__name__.removeprefix("_run_")
        command = commands.add_parser(
            name, help=words, description=words, allow_abbrev=False
        )
        command.set_defaults(run=run)
        return command

    add_search(add(_run_search, "find the best plan of a model or function"))
    add_price(add(_run_price, "price degrees that you already run"))
    shown = add(_run_show, "show all of a saved plan")
    shown.add_argument("plan", help="a plan.json")
    explained = add(_run_explain, "show what a plan does with operators, and why")
    explained.add_argument("plan", help="a plan.json")
    words = "one operator, file.py:line, or path of an argument; else all"
    explained.add_argument("--op", metavar="NAME", help=words)
    explained.add_argument("--json", action="store_true", help="print one JSON object")
    add_verify(add(_run_verify, "compile a saved plan, compare with what it predicts"))
    words = "measure the chips at hand, write a cluster file for --cluster"
    add_calibrate(add(_run_calibrate, words))
    for run, what in (_run_models, "models"), (_run_clusters, "clusters"):
        option = add(run, f"list the {what} that come with lts").add_argument
        option("--json", action="store_true", help="print one JSON object")
    return parser


def _problem(args: argparse.Namespace) -> tuple[Any, dict[str, Any], Entry | None]:
    """What is to be planned, what `search` and `price` take alike, where it is from."""
    options: dict[str, Any] = {
        "cluster": Cluster.parse(args.cluster),
        "on_unknown": args.on_unknown,
        "trips": trips_of(args.trips),
    }
    entry = find(args.model, args.args) if is_entry(args.model) else None
    if entry is not None and entry.calls:
        refuse(args, OF_MODELS, f"{args.model} is a function, which has no workload")
        if args.serving != SERVINGS[0]:
            raise ValueError("drop --serving: a function has one phase")
        options |= {
            "shapes": entry.calls,
            "weights": names_of(args.weights),
            "state": state_of(args.state),
        }
        return entry.target, options, entry
    options |= {
        "workload": workload_of(args),
        "serving": args.serving,
        "weight_dtype": args.weight_dtype,
        "kv_dtype": args.kv_dtype,
        "engine": args.engine,
    }
    if entry is not None:
        return entry.target, options, entry
    refuse(args, ["args"], f"{args.model} brings its own")
    return load(args.model), options, None


@contextmanager
def _naming(entry: Entry | None) -> Iterator[None]:
    """Says of what goes wrong in a user's function that it was traced."""
    try:
        yield
    except (ValueError, TypeError, NoFeasiblePlanError, UnsupportedOpError):
        raise
    except Exception as error:
        if entry is None:
            raise
        what = f"tracing {entry.origin['target']!r}"
        raise ValueError(failure(what, error)) from error


def _run_search(args: argparse.Namespace) -> int:
    target, options, entry = _problem(args)
    _check_writable(args.out)
    served = "workload" in options
    with search_progress(args.budget, served=served) as on_progress:
        with _naming(entry):
            plan = search(
                target,
                **options,
                method=args.method,
                budget=args.budget,
                seed=args.seed,
                max_stages=args.max_stages,
                on_progress=on_progress,
            )
    return _deliver(plan, args, entry)


def _run_price(args: argparse.Namespace) -> int:
    target, options, entry = _problem(args)
    degrees = {name: getattr(args, name) for name in DEGREES}
    degrees = {name: value for name, value in degrees.items() if value is not None}
    if not degrees:
        raise ValueError(f"price needs at least one of {', '.join(map(flag, DEGREES))}")
    _check_writable(args.out)
    with _naming(entry):
        plan = price(target, **options, degrees=degrees)
    return _deliver(plan, args, entry)


def _run_explain(args: argparse.Namespace) -> int:
    data = Plan.load(args.plan).to_dict()
    text = explain_text(data, args.op)
    print(_json({"operations": operations(data, args.op)}) if args.json else text)
    return DONE


def _run_show(args: argparse.Namespace) -> int:
    print(plan_text(Plan.load(args.plan).to_dict(), full=True))
    return DONE


def _run_verify(args: argparse.Namespace) -> int:
    plan, entry = Plan.load(args.plan), None
    if plan.model is None:
        origin = plan.origin or {}
        name = args.function or origin.get("target")
        if name is None:
            raise ValueError(
                f"'{args.plan}' is of a function of your own: say which it is with "
                "--function module:function"
            )
        own = origin.get("args") if name == origin.get("target") else None
        entry = find(name, args.args or own)
    else:
        refuse(args, ["function", "args"], f"the plan is of {plan.model.model.name}")
    found = _verified(plan, args.target, entry)
    if found is None:
        return INFEASIBLE
    print(_json(found) if args.json else verification_text(found))
    return INFEASIBLE if args.strict and not found["ok"] else DONE


def _run_calibrate(args: argparse.Namespace) -> int:
    if not is_path(args.out.name):
        raise ValueError(f"--out {args.out}: a cluster file's name ends in .yaml")
    files = [args.out, calibration_path(args.out)]
    for path in files:
        _check_writable(path, "cluster file")
    found = calibrate(
        name=args.name or args.out.stem,
        today=date.today().isoformat(),
        quick=args.quick,
        on_family=_show_measured if sys.stderr.isatty() else None,
    )
    cluster = write(found, args.out)
    data = {
        **found.to_dict(),
        "cluster": cluster.to_dict(),
        "files": [str(path) for path in files],
    }
    print(_json(data) if args.json else calibrated_text(data))
    return DONE


def _show_measured(key: str) -> None:
    print(f"lts: measuring {key}", file=sys.stderr)


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


def _verified(
    plan: Plan, target: str, entry: Entry | None = None
) -> dict[str, Any] | None:
    """The verification; None, said on stderr, if XLA does not compile the plan.

    Args:
      entry: what a plan without a model of ours is of.
    """
    try:
        if entry is None:
            found = plan.verify(target=target)
        elif isinstance(entry.target, Problem):
            found = _verified_problem(plan, entry.target, target)
        else:
            assert callable(entry.target)
            args, kwargs = entry.calls[0]
            found = plan.verify(entry.target, args, kwargs, target=target)
        return found.to_dict()
    except RuntimeError as error:
        _fail(error, INFEASIBLE)
        return None


def _verified_problem(plan: Plan, problem: Problem, target: str) -> Verification:
    reports = [
        phase.verify(
            problem.function(name), problem.args(name, phase.batch), target=target
        )
        for name, phase in plan.phases.items()
    ]
    return Verification(reports=tuple(reports))


def _deliver(plan: Plan, args: argparse.Namespace, entry: Entry | None) -> int:
    """Save, then verify, then print."""
    if entry is not None:
        plan = dataclasses.replace(plan, origin=entry.origin)
    data, status, found = plan.to_dict(), DONE, None
    if args.out is not None:
        status = _save(plan, args.out)
    if args.verify:
        found = _verified(plan, "cpu", entry if plan.model is None else None)
        status = status or (INFEASIBLE if found is None else DONE)
    if args.json:
        print(_json({**data, "verification": found} if args.verify else data))
        return status
    print(plan_text(data))
    if found is not None:
        print(f"\n{verification_text(found)}")
    return status


def _check_writable(path: Path | None, what: str = "plan") -> None:
    """Refuse a place that cannot be written to before the work, not after it."""
    if path is None:
        return
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write {what} '{path}': {error.strerror}; give --out a file in a "
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
