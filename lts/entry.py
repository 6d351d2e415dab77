"""`module:function`: a user's function and its arguments, found by name.

Its arguments come from a callable beside it, `step_args` for `step`, that takes none
and returns the arguments of one call: a tuple `(x, y)`, or a pair `((x, y), {"z": z})`
with keywords; a list of these for one plan over several shapes. What is named may also
be an `lts.Problem`, or a callable without parameters that returns one.
"""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from lts.models import Decoder
from lts.plain import Call, call_of
from lts.problem import Problem, argument_names

EXAMPLE = """
def {name}_args():
    array = jax.ShapeDtypeStruct  # shapes and dtypes are enough
    return {arrays}"""


class NoArgumentsError(ValueError):
    """A function whose arguments are not given; `example` shows what to write."""

    def __init__(self, message: str, example: str) -> None:
        """The message in one line, and the lines of the example."""
        super().__init__(message)
        self.example = example


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What a name stands for.

    Attributes:
      target: a function, or a model to serve.
      calls: the function's arguments at every shape; none for a model.
      origin: names that find it again: `target`, and `args` where it has some.
    """

    target: Callable[..., Any] | Problem | Decoder
    calls: tuple[Call, ...]
    origin: Mapping[str, str]


def is_entry(text: str) -> bool:
    """Whether a text looks like `module:function`, and not like a model or a file."""
    return ":" in text and not Path(text).exists()


def find(text: str, args: str | None = None) -> Entry:
    """What `module:function` or `path/to/file.py:function` stands for.

    The current folder can be imported from.

    Args:
      args: `:callable` of the same module, or `module:callable`; None for the
        function's neighbour.

    Raises:
      ValueError: if something is missing, fails when imported or called, or returns
        what it should not.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ValueError(f"cannot read {text!r}: expected module:function")
    owner, found = _attribute(_module(where), name, text)
    if args is not None:
        there, _, giver = args.rpartition(":")
        module = _module(there or where)
        return _with_calls(text, found, f"{there or where}:{giver}", module, giver)
    short = name.rpartition(".")[2]
    if hasattr(owner, f"{short}_args"):
        own = f"{where}:{name}_args"
        return _with_calls(text, found, own, owner, f"{short}_args")
    if callable(found) and not isinstance(found, Problem) and _takes_nothing(found):
        made = _called(found, text)
        if not isinstance(made, Problem | Decoder):
            raise ValueError(
                f"{text!r} has no parameters, so it must return an lts.Problem; it "
                f"returned {type(made).__name__}"
            )
        found = made
    if isinstance(found, Problem | Decoder):
        return Entry(target=found, calls=(), origin={"target": text})
    _check_callable(found, text)
    raise _no_arguments(text, found)


def _with_calls(text: str, found: Any, giver: str, owner: Any, name: str) -> Entry:
    _check_callable(found, text)
    _, callable_ = _attribute(owner, name, giver)
    _check_callable(callable_, giver)
    made = _called(callable_, giver)
    try:
        calls = tuple(map(call_of, made if isinstance(made, list) else [made]))
    except ValueError as error:
        raise ValueError(f"{giver!r} returned no arguments: {error}") from None
    if not calls:
        raise ValueError(f"{giver!r} returned an empty list: no shape to plan for")
    return Entry(target=found, calls=calls, origin={"target": text, "args": giver})


def _module(where: str) -> ModuleType:
    """A module by name or file, imported with the current folder on the path."""
    here = os.getcwd()
    if not {here, ""} & set(sys.path):
        sys.path.insert(0, here)
    if where.endswith(".py"):
        return _guarded(lambda: _of_file(Path(where)), where)
    return _guarded(lambda: importlib.import_module(where), where)


def _of_file(path: Path) -> ModuleType:
    """The module of a file; what lies beside the file can be imported, too."""
    if not path.is_file():
        raise ValueError(f"no file '{path}'; give path/to/file.py:function")
    path = path.resolve()
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if known is None else f"lts_entry_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _guarded(load: Callable[[], ModuleType], where: str) -> ModuleType:
    try:
        return load()
    except ModuleNotFoundError as error:
        missing = error.name or where
        if missing != where and not where.startswith(f"{missing}."):
            raise ValueError(failure(f"importing {where!r}", error)) from error
        files = [path.stem for path in Path.cwd().glob("*.py")]
        near = difflib.get_close_matches(where, files, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"no module {where!r}: {hint}Modules are looked for in the current folder "
            "and where Python looks; a file is given as path/to/file.py:function"
        ) from error
    except ValueError as error:
        if error.__traceback__ is not None and _in_user_code(error):
            raise ValueError(failure(f"importing {where!r}", error)) from error
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(failure(f"importing {where!r}", error)) from error


def _in_user_code(error: BaseException) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename != __file__


def _attribute(owner: Any, name: str, text: str) -> tuple[Any, Any]:
    """An attribute by its dotted name, and what it is an attribute of."""
    found = owner
    for part in name.split("."):
        owner = found
        if not hasattr(owner, part):
            names = [n for n in dir(owner) if not n.startswith("_")]
            own = [n for n in names if callable(getattr(owner, n))] or names
            near = difflib.get_close_matches(part, own, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else ""
            there = ", ".join(own[:8]) or "nothing"
            raise ValueError(f"{text!r}: no {part!r}; {hint or f'it has {there}'}")
        found = getattr(owner, part)
    return owner, found


def _check_callable(found: Any, text: str) -> None:
    if not callable(found):
        raise ValueError(
            f"{text!r} is {type(found).__name__}, neither a function nor an lts.Problem"
        )


def _takes_nothing(found: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty for p in parameters)


def _called(found: Callable[..., Any], text: str) -> Any:
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ValueError(failure(f"calling {text!r}", error)) from error


def failure(what: str, error: BaseException) -> str:
    """What failed, where in the user's code, and how to see more."""
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or '').name}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not _is_library(frame.filename)]
        frame = (own or frames)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
    return (
        f"{what} failed at {where}: {type(error).__name__}: {error}; LTS_TRACEBACK=1 "
        "shows the whole way"
    )


def _is_library(file: str) -> bool:
    """Whether a frame is in lts, in jax, or in an import machinery."""
    folders = [Path(__file__).parent, Path(jax.__file__).parent]
    return file.startswith("<") or any(
        folder in Path(file).parents for folder in folders
    )


def _no_arguments(text: str, found: Callable[..., Any]) -> NoArgumentsError:
    name = text.rpartition(":")[2].rpartition(".")[2]
    names = argument_names(found, 8) or ("x",)
    arrays = ", ".join('array((8, 1024), "bfloat16")' for _ in names[:1])
    arrays += f"{', ...' if len(names) > 1 else ','}  # {', '.join(names)}"
    message = (
        f"{text!r} needs arguments: write {name}_args beside it, which returns them, "
        "or name what does with --args module:callable"
    )
    return NoArgumentsError(message, EXAMPLE.format(name=name, arrays=arrays))
