"""Where an equation comes from: the user's file and line, and named scopes."""

import functools
import os
import sysconfig
from collections.abc import Iterator
from typing import Any

_TRACER = os.sep + os.path.join("lts", "tracing") + os.sep
_JAX = os.sep + "jax" + os.sep
_INSTALLED = tuple(
    sorted({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
)


@functools.lru_cache(maxsize=4096)
def _kind(file_name: str) -> str:
    """ "tracer", "jax", "library" or "user"."""
    if _TRACER in file_name:
        return "tracer"
    if _JAX in file_name:
        return "jax"
    installed = file_name.startswith(_INSTALLED) or "-packages" + os.sep in file_name
    return "library" if installed or file_name.startswith("<") else "user"


def _frames(equation: Any) -> Iterator[tuple[str, int]]:
    """File and line of the frames of the traced function, innermost first."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        kind = _kind(frame.file_name)
        if kind == "tracer":
            return  # what follows called us, and is no part of the function
        if kind != "jax":
            yield frame.file_name, frame.line_num


def source_line(equation: Any) -> str:
    """`file:line` of the innermost frame of the user's own code, else of a library's.

    A layer of an installed library is named by the line that calls it.
    """
    found = ""
    for file_name, line in _frames(equation):
        name = f"{os.path.basename(file_name)}:{line}"
        if _kind(file_name) == "user":
            return name
        found = found or name
    return found


def scopes(equation: Any) -> tuple[str, ...]:
    """Named scopes of an equation; einsum adds its own pattern, which is dropped."""
    stack = str(equation.source_info.name_stack)
    return tuple(part for part in stack.split("/") if part and "->" not in part)
