"""Which primitives do jax's public functions bind, and what rule has each?

    python -m experiments.rule_coverage --json new.json
    python -m experiments.rule_coverage --with new.json --out docs/primitives.md

Traces every public function of `jax.lax`, `jax.numpy`, `jax.nn` and
`jax.scipy.special` (and `jax.random`, `jax.scipy.linalg` beside them) on abstract
arrays, walks all inner jaxprs, and asks `lts` for the rule of every primitive found:
each function is also traced by `lts` itself. Run it under the oldest and the newest
supported jax: `--json` writes what one version gives, `--with` puts such a file beside
this version's. About half a minute.

Found: every primitive has a rule (`python -m experiments.rule_coverage` says so); the
functions that could not be traced are collectives, which need a mesh axis that only
`shard_map` binds, helpers that compute with shapes, and readers of files.
"""

import argparse
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
from jax import lax

import lts
from experiments.rule_cases import (
    BATCH,
    CASES,
    COMPLEX,
    IDS,
    KEY,
    MASK,
    NOT_TRACED,
    SQUARE,
    S,
    V,
    X,
    spec,
)
from experiments.rule_page import page
from lts.tracing.decide import keys_of
from lts.tracing.follow import ELEMENTWISE, FOLLOW, REDUCTIONS
from lts.tracing.rules import KINDS

MODULES: dict[str, Any] = {
    "jax.lax": lax,
    "jax.lax.linalg": lax.linalg,
    "jax.numpy": jnp,
    "jax.numpy.linalg": jnp.linalg,
    "jax.numpy.fft": jnp.fft,
    "jax.nn": jax.nn,
    "jax.scipy.special": jax.scipy.special,
    "jax.random": jax.random,
    "jax.scipy.linalg": jax.scipy.linalg,
}
EXTRA = ("jax.random", "jax.scipy.linalg")
"""Modules beyond those whose coverage is asked for."""

CALLS = frozenset(
    """closed_call composite core_call custom_jvp_call custom_vjp_call
    custom_vjp_call_jaxpr jit pjit remat2 checkpoint custom_vmap_call""".split()
)
REGIONS = frozenset("cond scan while".split())
PLACED = frozenset("after_all create_token empty empty2 iota platform_index".split())
"""Made of nothing but numbers: every device makes its own, no rule is asked."""

UINT = spec(8, 16, dtype="uint32")
INTS = spec(8, 16, dtype="int32")
GENERIC: tuple[tuple[Any, ...], ...] = (
    (X,),
    (X, X),
    (SQUARE,),
    (SQUARE, SQUARE),
    (V,),
    (V, V),
    (X, X, X),
    (INTS,),
    (INTS, INTS),
    (IDS,),
    (IDS, IDS),
    (MASK, MASK),
    (S,),
    (S, S),
    (COMPLEX,),
    (UINT, UINT),
    (IDS, V),
    (V, IDS),
    (SQUARE, V),
    (V, SQUARE),
    (INTS, X),
    (X, IDS),
    (X, 1),
    (X, 0),
    (X, S),
    (X, (0,)),
    (X, (1, 0)),
    (X, (16, 8)),
    (X, "float16"),
    (X, S, S),
    (SQUARE, SQUARE, SQUARE),
    (V, V, V),
    (X, X, X, X),
    (V, V, V, V),
    (S, S, S, S),
    (BATCH,),
    (BATCH, BATCH),
    ([V, V],),
    ((X, X),),
    (KEY,),
    (KEY, (8,)),
    (KEY, V),
    (KEY, 0.5),
    (KEY, V, V),
    (KEY, 0.5, 0.5),
    (KEY, V, SQUARE),
    (KEY, 5, 0.5),
    (3,),
    (8, 3),
    ((8, 16),),
    (0.0, 1.0),
    ("float32", (8, 16), 0),
    (V, 3),
    (),
)
"""Arguments tried in order, until a function takes some."""


@dataclass(kw_only=True)
class Found:
    """What tracing the public functions gives.

    Attributes:
      functions: per primitive, the functions that bind it.
      untraced: functions that could not be traced, with the reason.
      refused: functions that `lts` refuses, with its error.
    """

    functions: dict[str, list[str]] = field(default_factory=dict)
    untraced: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Full name and function of everything public that can be called."""
    for module_name, module in MODULES.items():
        for name in sorted(vars(module)):
            function = getattr(module, name)
            is_type = inspect.isclass(function) or isinstance(function, type(jnp.int8))
            if not name.startswith("_") and callable(function) and not is_type:
                yield f"{module_name}.{name}", function


def primitives_of(jaxpr: Any) -> set[str]:
    """Names of all primitives of a jaxpr, inner jaxprs included."""
    jaxpr, found = getattr(jaxpr, "jaxpr", jaxpr), set[str]()
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        found.add(keys_of(name, params)[0] if name == "call_hi_primitive" else name)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    found |= primitives_of(inner)
    return found


def _called(function: Callable[..., Any], args: Sequence[Any]):
    """A function of the abstract arrays alone, and these."""

    def is_leaf(leaf: Any) -> bool:
        return isinstance(leaf, jax.ShapeDtypeStruct)

    leaves, tree = jax.tree.flatten(tuple(args))
    numbers = [i for i, leaf in enumerate(leaves) if is_leaf(leaf)]

    def call(*arrays: Any) -> list[Any]:
        full = list(leaves)
        for i, array in zip(numbers, arrays, strict=True):
            full[i] = array
        out = jax.tree.leaves(function(*jax.tree.unflatten(tree, full)))
        return [leaf for leaf in out if hasattr(leaf, "dtype")]

    return call, [leaves[i] for i in numbers]


def witness(name: str, function: Callable[..., Any]) -> tuple[Any, Any, list[Any]]:
    """A jaxpr of a public function, the function that was traced, and its arrays.

    Raises:
      Exception: what the last attempt raised, if no arguments fit.
    """
    if name in CASES:
        how, *arrays = CASES[name]

        def call(*args: Any) -> Any:
            return how(function, *args)

        return jax.make_jaxpr(call)(*arrays), call, arrays
    last: Exception = TypeError("takes no arguments that were tried")
    draws = name.startswith("jax.random.")
    for args in sorted(GENERIC, key=lambda args: any(a is KEY for a in args) != draws):
        call, arrays = _called(function, args)
        try:
            return jax.make_jaxpr(call)(*arrays), call, arrays
        except Exception as error:  # any refusal means: not these arguments
            last = error
    raise last


def refusal(call: Callable[..., Any], arrays: Sequence[Any]) -> str:
    """The error with which `lts` refuses a function; `` if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lts.trace(call, *arrays)
    except lts.UnsupportedOpError as error:
        return str(error)
    return ""


def enumerate_primitives(*, check_all: bool = True) -> Found:
    """Trace every public function.

    Args:
      check_all: trace each of them by `lts`, too; else the first for each primitive.
    """
    found = Found()
    for name, function in public_functions():
        if name in NOT_TRACED:
            found.untraced[name] = NOT_TRACED[name]
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                jaxpr, call, arrays = witness(name, function)
        except Exception as error:
            found.untraced[name] = str(error).splitlines()[0][:100]
            continue
        primitives = primitives_of(jaxpr)
        is_new = not primitives <= set(found.functions)
        for primitive in primitives:
            found.functions.setdefault(primitive, []).append(name)
        if check_all or is_new:
            error = refusal(call, arrays)
            if error:
                found.refused[name] = error
    return found


def kind_of(primitive: str) -> str:
    """What kind of rule a primitive has; `` if none."""
    base = primitive.partition(":")[0]
    for key in (primitive, base):
        for kind, rules in KINDS.items():
            if key in rules:
                return kind
    if primitive in CALLS:
        return "call"
    if primitive in REGIONS:
        return "region"
    if primitive in ELEMENTWISE:
        return "elementwise"
    if primitive in REDUCTIONS:
        return "reduction"
    if primitive == "dynamic_update_slice":
        return "look-up or update"
    if primitive in FOLLOW:
        return "layout"
    return "made in place" if primitive in PLACED else ""


def asked(found: Found) -> list[str]:
    """Primitives that functions outside the extra modules bind."""

    def is_asked(name: str) -> bool:
        return not name.startswith(EXTRA)

    names = found.functions.items()
    return sorted(p for p, binding in names if any(map(is_asked, binding)))


def coverage(found: Found, primitives: Sequence[str]) -> float:
    """Share of primitives that have a rule."""
    return sum(bool(kind_of(p)) for p in primitives) / len(primitives)


def result_of(found: Found) -> dict[str, Any]:
    """What one version gives, as JSON data."""
    own, everything = asked(found), sorted(found.functions)
    return {
        "asked": len(own),
        "coverage": coverage(found, own),
        "all": len(everything),
        "coverage_all": coverage(found, everything),
        "primitives": {
            name: {"kind": kind_of(name), "functions": found.functions[name][:3]}
            for name in everything
        },
        "untraced": found.untraced,
        "refused": found.refused,
    }


def main() -> None:
    """Enumerate, print a summary, write what is asked."""
    parser = argparse.ArgumentParser(description="Rules of jax's primitives")
    parser.add_argument("--json", type=Path, help="write this version's result")
    parser.add_argument("--with", dest="other", type=Path, help="another version's")
    parser.add_argument("--out", type=Path, help="write the page")
    args = parser.parse_args()
    result = result_of(enumerate_primitives())
    results = {jax.__version__: result}
    print(
        f"jax {jax.__version__}: {result['asked']} primitives, "
        f"{result['coverage']:.1%} with a rule; with the extra modules "
        f"{result['all']}, {result['coverage_all']:.1%}"
    )
    for name, why in {**result["untraced"], **result["refused"]}.items():
        if name not in NOT_TRACED:
            print(f"  {name}: {why}")
    print("  no rule:", [p for p, r in result["primitives"].items() if not r["kind"]])
    if args.json:
        args.json.write_text(json.dumps(results))
    if args.other:
        results.update(json.loads(args.other.read_text()))
    if args.out:
        args.out.write_text(page(results))


if __name__ == "__main__":
    main()
