"""HLO text to the list of its collectives: kind, mesh axes, bytes, times executed.

XLA offers no structured access to the groups of a collective, so its text is read.
Any backend's text will do; the one dumped right after XLA's spmd-partitioning pass is
the one to compare a plan with, because backends change types and kinds later on.

The text is cut into computations (`_computations`). From ENTRY, every reference to
another computation passes on how often it runs (`_executions`): a while body its trip
count (`_trip_count`), a called computation or a branch once per call site.
`lts.hlo_groups` reads the groups and gives them their mesh axes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

from lts.hlo_groups import parse_groups, varying_axes

_KINDS = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all "
    "collective-permute collective-broadcast".split()
)
_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?(\S+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b(?:pred|(?:bf|f|s|u|c)(\d+)\w*)\[([\d,<=]*)\]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(
    r"\b(?:to_apply|calls|true_computation|false_computation"
    r"|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_KNOWN_TRIPS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')
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


@dataclass(frozen=True, kw_only=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str  # operands, closing parenthesis, attributes

    @property
    def operands(self) -> list[str]:
        """Operand names (or the literal of a constant), without shapes and `%`."""
        return [item.split()[-1].lstrip("%") for item in _items(self.rest)]


@dataclass(frozen=True, kw_only=True)
class _Computation:
    instructions: dict[str, _Instruction]
    root: str


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
    computations, entry = _computations(hlo)
    executions = _executions(computations, entry)
    num_devices = math.prod(mesh_shape.values())
    found = []
    for name, computation in computations.items():
        count, known = executions.get(name, (0, True))
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
    (result,) = _items(match[2])
    results = _items(result[1:]) if result.startswith("(") else [result]
    arguments = _items(match[1] + ")")
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


def _computations(hlo: str) -> tuple[dict[str, _Computation], str]:
    """Computations by name, and the name of ENTRY."""
    found: dict[str, _Computation] = {}
    instructions: dict[str, _Instruction] = {}
    entry = current = None
    for line in _INDEX_COMMENT.sub("", hlo).splitlines():
        if header := _HEADER.match(line):
            current, instructions = header[2], {}
            found[current] = _Computation(instructions=instructions, root="")
            if header[1]:
                entry = current
        elif current and (match := _INSTRUCTION.match(line)):
            is_root, name, shape, opcode, rest = match.groups()
            instructions[name] = _Instruction(
                name=name, shape=shape, opcode=opcode, rest=rest
            )
            if is_root:
                found[current] = _Computation(instructions=instructions, root=name)
    if entry is None:
        raise ValueError(
            f"no ENTRY computation in HLO text of {len(hlo)} characters: pass the text "
            "of one whole module, as `compiled.as_text()` or an XLA dump gives it."
        )
    return found, entry


def _executions(
    computations: Mapping[str, _Computation], entry: str
) -> dict[str, tuple[int, bool]]:
    """How often each computation runs, and whether all trip counts were known."""
    called = {name: _calls(name, computations) for name in computations}
    graph = {name: {callee for callee, *_ in calls} for name, calls in called.items()}
    callees_first = list(TopologicalSorter(graph).static_order())
    executions = {entry: (1, True)}
    for name in reversed(callees_first):
        if name not in executions:
            continue  # nothing that runs refers to it
        count, known = executions[name]
        for callee, times, times_known in called[name]:
            before, all_known = executions.get(callee, (0, True))
            executions[callee] = (
                before + count * times,
                all_known and known and times_known,
            )
    return executions


def _calls(
    name: str, computations: Mapping[str, _Computation]
) -> list[tuple[str, int, bool]]:
    """Computations referred to from one: (name, times per execution, times known).

    Reducers are among them; they do no harm, as they hold no collectives.
    """
    found: list[tuple[str, int, bool]] = []
    for instruction in computations[name].instructions.values():
        if instruction.opcode == "while":
            trips = _trip_count(instruction, computations[name], computations)
            known, times = trips is not None, 1 if trips is None else trips
            body = _while_part(instruction, "body")
            condition = _while_part(instruction, "condition")
            # the condition also runs where the loop ends
            times_tested = times + 1 if known else 1
            found += [(body, times, known), (condition, times_tested, known)]
        elif not instruction.opcode.endswith(("-update", "-done")):
            # the later halves of an asynchronous call name the computation again
            for names in _CALLED.findall(instruction.rest):
                found += [(n, 1, True) for n in re.findall(r"[\w.\-]+", names)]
    return [call for call in found if call[0] in computations]


def _while_part(loop: _Instruction, part: str) -> str:
    match = re.search(rf"\b{part}=%?([\w.\-]+)", loop.rest)
    if not match:
        raise ValueError(f"while {loop.name!r} has no {part}: is the text cut off?")
    return match[1]


def _trip_count(
    loop: _Instruction,
    caller: _Computation,
    computations: Mapping[str, _Computation],
) -> int | None:
    """Trips of a while loop: as XLA annotated it, else solved from its text.

    Solved if the condition compares two values that are constants or change by a
    constant per trip, as `lax.scan` and `fori_loop` with static bounds give.
    """
    if match := _KNOWN_TRIPS.search(loop.rest):
        return int(match[1])
    condition = computations[_while_part(loop, "condition")]
    body = computations[_while_part(loop, "body")]
    compare = condition.instructions.get(_resolve(condition.root, condition))
    direction = re.search(r"direction=(\w\w)", compare.rest) if compare else None
    if compare is None or compare.opcode != "compare" or direction is None:
        return None

    def start_and_step(operand: str) -> tuple[int, int] | None:
        index, offset = _carry_plus(operand, condition) or (None, None)
        if offset is None or index is None:
            return None if offset is None else (offset, 0)
        start = _carry_plus(f"{loop.operands[0]}#{index}", caller)
        update = _carry_plus(f"{body.root}#{index}", body)
        if not start or start[0] is not None or not update or update[0] != index:
            return None
        return start[1] + offset, update[1]

    left, right = map(start_and_step, compare.operands)
    if left is None or right is None:
        return None
    # in trip k the loop goes on while `gap + k * step` stands in `direction` to zero
    gap, step = left[0] - right[0], left[1] - right[1]
    if direction[1] in ("GT", "GE"):
        gap, step = -gap, -step
    if direction[1] in ("LE", "GE"):
        gap -= 1  # integers: at most 0 is below 1
    if direction[1] == "NE":
        ends = step and gap % step == 0 and gap * step <= 0
        return -gap // step if ends else None
    if direction[1] == "EQ":
        return None
    if gap >= 0:
        return 0
    return math.ceil(-gap / step) if step > 0 else None


def _carry_plus(
    operand: str, computation: _Computation
) -> tuple[int | None, int] | None:
    """(i, c) if the operand is element i of the parameter plus c, (None, c) if just c.

    Of integers, through additions and subtractions; None if it is anything else.
    """
    name, _, index = _resolve(operand, computation).partition("#")
    instruction = computation.instructions.get(name)
    if instruction is None:
        return None
    if instruction.opcode == "parameter" and index.isdigit():
        return int(index), 0
    if instruction.opcode == "constant":
        match = re.match(r"(-?\d+)\)", instruction.rest)
        return (None, int(match[1])) if match else None
    if instruction.opcode not in ("add", "subtract"):
        return None
    left, right = (_carry_plus(each, computation) for each in instruction.operands)
    if instruction.opcode == "add" and left and left[0] is None:
        left, right = right, left
    if not left or not right or right[0] is not None:
        return None
    change = right[1] if instruction.opcode == "add" else -right[1]
    return left[0], left[1] + change


def _resolve(operand: str, computation: _Computation) -> str:
    """The operand behind copies, conversions and tuples.

    `name#i` is element i of a tuple; newer XLA prints it, older ones name a
    get-tuple-element.
    """
    name, *path = operand.split("#")
    instruction = computation.instructions.get(name)
    if instruction is None:
        return operand
    if instruction.opcode == "tuple" and path:
        behind, path = instruction.operands[int(path[0])], path[1:]
    elif instruction.opcode == "get-tuple-element":
        element = re.search(r"index=(\d+)", instruction.rest)
        assert element, instruction
        behind, path = instruction.operands[0], [element[1], *path]
    elif instruction.opcode in ("copy", "convert", "bitcast", "opt-barrier"):
        behind = instruction.operands[0]
    else:
        return operand
    return _resolve("#".join([behind, *path]), computation)


def _result_bytes(instruction: _Instruction) -> int:
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


def _items(text: str) -> list[str]:
    """Parts of a list up to its closing bracket, cut at the commas outside brackets."""
    depth, start, found = 0, 0, []
    for place, char in enumerate(text):
        closes = char in ")]}"
        if depth == 0 and (closes or char == ","):
            found.append(text[start:place].strip())
            start = place + 1
            if closes:
                break
        depth += (char in "([{") - closes
    return [item for item in found if item]
