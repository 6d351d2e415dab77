"""HLO text to the list of its collectives: kind, mesh axes, bytes, times executed.

XLA offers no structured access to the groups of a collective, so its text is read.
Any backend's text will do; the one dumped right after XLA's spmd-partitioning pass is
the one to compare a plan with, because backends change types and kinds later on.

`lts.hlo_text` cuts the text into computations and counts how often each runs;
`lts.hlo_groups` reads the groups and gives them their mesh axes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lts.hlo_groups import parse_groups, varying_axes
from lts.hlo_text import Instruction, executions, items, parse_computations

_KINDS = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all "
    "collective-permute collective-broadcast".split()
)
_ARRAY = re.compile(r"\b(?:pred|(?:bf|f|s|u|c)(\d+)\w*)\[([\d,<=]*)\]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ENTRY_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*)")
_REMATERIALIZATION = re.compile(
    r"Involuntary full rematerialization\. The compiler cannot go from sharding "
    r"(.*?) to (.*?) efficiently for HLO operation (%?\S+)(.*)"
)


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction, as every device of the mesh runs it.

    Attributes:
      kind: `all_gather`, `all_reduce`, `reduce_scatter`, `all_to_all`,
        `collective_permute`, `ragged_all_to_all` or `collective_broadcast`.
      axes: mesh axes whose coordinate varies inside a group, in mesh order; an axis
        counts also when the group spans only part of it (see `group_size`).
      nbytes: bytes of the result on one device, of one execution.
      group_size: devices in a group; 2 for a permute, whose groups are its pairs.
      count: times executed in one run of the program.
      trips_known: False if a loop around it has a trip count that the text does not
        tell; such a loop is counted once.
      op_name: where it comes from in the traced program, "" if not recorded.
    """

    kind: str
    axes: tuple[str, ...]
    nbytes: int
    group_size: int
    count: int
    trips_known: bool
    op_name: str


def list_collectives(hlo: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Collectives of an HLO module that run at least once, in the order of the text.

    A collective stands once in the list, with all its executions in `count`: those in a
    while body times its trips (its condition runs once more), nested loops multiplied;
    those in a computation with several call sites added up. Every branch of a
    conditional counts as taken once. Groups of one device are left out.

    Args:
      hlo: text of one module, with ENTRY.
      mesh_shape: size of each mesh axis, slowest first, e.g. `{"dp": 2, "tp": 4}`.

    Raises:
      ValueError: if the text has no ENTRY computation, a collective has no readable
        groups, or a group names a device outside the mesh.
    """
    computations, entry = parse_computations(hlo)
    runs = executions(computations, entry)
    num_devices = math.prod(mesh_shape.values())
    found = []
    for name, computation in computations.items():
        count, known = runs.get(name, (0, True))
        for instruction in computation.instructions.values():
            kind = instruction.opcode.removesuffix("-start")
            if not count or kind not in _KINDS:
                continue
            groups = parse_groups(instruction.rest, num_devices)
            axes = varying_axes(groups, mesh_shape, instruction.name)
            if not axes:
                continue
            op_name = _OP_NAME.search(instruction.rest)
            found.append(
                Collective(
                    kind=kind.replace("-", "_"),
                    axes=axes,
                    nbytes=_result_bytes(instruction),
                    group_size=max(map(len, groups)),
                    count=count,
                    trips_known=known,
                    op_name=op_name[1].replace('\\"', '"') if op_name else "",
                )
            )
    return found


def entry_bytes(hlo: str) -> tuple[list[int], list[int]]:
    """Bytes on one device of each argument and of each result of a module.

    Args:
      hlo: text of one module after SPMD partitioning, when its shapes are local ones.

    Raises:
      ValueError: if the text does not give the layouts of its ENTRY computation.

    >>> entry_bytes("HloModule m, entry_computation_layout={(f32[8], s4[3])->s8[]}")
    ([32, 2], [1])
    """
    match = _ENTRY_LAYOUT.search(hlo)
    if match is None:
        raise ValueError(
            "no entry_computation_layout in the HLO text: pass a whole module with its "
            "first line."
        )
    (result,) = items(match[2])
    results = items(result[1:]) if result.startswith("(") else [result]
    arguments = items(match[1] + ")")
    return [sum(_array_bytes(a)) for a in arguments], [
        sum(_array_bytes(r)) for r in results
    ]


def rematerialization_warnings(stderr: str) -> list[str]:
    """What XLA's "Involuntary full rematerialization" lines say, one string each.

    Such a line means that XLA found no direct way between two shardings of a value and
    gathers it in full on every device.

    Returns:
      `operation (op_name): sharding before -> sharding after`, in order, no repeats.
    """
    found: dict[str, None] = {}
    for before, after, operation, rest in _REMATERIALIZATION.findall(stderr):
        op_name = _OP_NAME.search(rest)
        source = f" ({op_name[1]})" if op_name else ""
        found[f"{operation.lstrip('%')}{source}: {before} -> {after}"] = None
    return list(found)


def _result_bytes(instruction: Instruction) -> int:
    """Bytes of the result of an instruction, from its printed shape.

    A `-start` form has the shape (operands, results, contexts...); only all-reduce may
    have its result alone. Without `-start`, a tuple is a result of several arrays.
    """
    shape = instruction.shape
    arrays = _array_bytes(shape)
    nested = shape.startswith("((")
    with_operands = instruction.opcode.endswith("-start") and (
        nested or (shape.startswith("(") and instruction.opcode != "all-reduce-start")
    )
    if not with_operands:
        return sum(arrays)
    num_operands = len(_ARRAY.findall(shape.split("), ")[0])) if nested else 1
    return sum(arrays[num_operands : 2 * num_operands])


def _array_bytes(shape: str) -> list[int]:
    """Bytes of each array in a printed shape; XLA packs types below 8 bits."""
    return [
        math.ceil(
            math.prod(map(int, re.findall(r"\d+", dims))) * int(bits or 8) / 8
        )  # no bits: pred
        for bits, dims in _ARRAY.findall(shape)
    ]
