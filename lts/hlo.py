"""HLO text to the list of its collectives: kind, mesh axes, bytes, times executed.

XLA offers no structured access to the groups of a collective, so its text is read.
Any backend's text will do; the one dumped right after XLA's spmd-partitioning pass is
the one to compare a plan with, because backends change types and kinds later on.

The text is cut into computations (`_computations`). From ENTRY, every reference to
another computation passes on how often it runs (`_executions`): a while body its trip
count (`_trip_count`), a called computation or a branch once per call site. Device
numbers in the text are positions in the flattened mesh, which gives a group its axes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
_WHILE_PART = r"\b{}=%?([\w.\-]+)"
_KNOWN_TRIPS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')

_ENTRY_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*)")

_MESH = re.compile(r"groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_IOTA = re.compile(r"groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"(?:groups|pairs)=\{(\{.*?\})\}")
_SUB_AXIS = re.compile(r"'(.+?)'(?::\((\d+)\)(\d+))?")

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
    found = []
    executions = _executions(computations, entry)
    for name, computation in computations.items():
        count, known = executions.get(name, (0, True))
        for instruction in computation.instructions.values():
            kind = instruction.opcode.removesuffix("-start")
            if not count or kind not in _KINDS:
                continue
            num_devices = math.prod(mesh_shape.values())
            groups = parse_groups(instruction.rest, num_devices)
            axes = _axes(groups, mesh_shape, instruction.name)
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


def parse_groups(attributes: str, num_devices: int) -> list[tuple[int, ...]]:
    """Groups of one collective, or the source-target pairs of a permute.

    Args:
      attributes: the text of the instruction after its opcode.
      num_devices: of the whole mesh; used when the text is `replica_groups={}`.

    Returns:
      Positions in the flattened mesh, one tuple per group.

    Raises:
      ValueError: if the text holds neither groups nor pairs.

    >>> parse_groups("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
    [(0, 4), (1, 5), (2, 6), (3, 7)]
    """
    if match := _MESH.search(attributes):
        return _rows(_mesh_table(match[1], match[2], match[3]))
    if match := _IOTA.search(attributes):
        return _rows(_iota(match[2], match[3]).reshape(_ints(match[1])))
    if match := _LISTED.search(attributes):
        return [tuple(_ints(group)) for group in match[1].split("},")]
    if "source_target_pairs={}" in attributes:
        return []
    if "replica_groups={}" in attributes:
        return [tuple(range(num_devices))]
    raise ValueError(
        f"no replica groups or source-target pairs in {attributes[:200]!r}: pass the "
        "whole line of the collective, as XLA prints it."
    )


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
    callees_first: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in callees_first:
            for callee, _, _ in called[name]:
                visit(callee)
            callees_first[name] = None

    visit(entry)
    executions = {entry: (1, True)}
    for name in reversed(callees_first):
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
    match = re.search(_WHILE_PART.format(part), loop.rest)
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
    left, right = (
        _start_and_step(operand, condition, loop, caller, body)
        for operand in compare.operands
    )
    if left is None or right is None:
        return None
    # in trip k the loop goes on while `gap + k * step` stands in `direction` to zero
    gap, step = left[0] - right[0], left[1] - right[1]
    if direction[1] in ("GT", "GE"):
        gap, step = -gap, -step
    if direction[1] in ("LE", "GE"):
        gap -= 1  # integers: at most 0 is below 1
    if direction[1] == "NE":
        return -gap // step if step and gap % step == 0 and gap * step <= 0 else None
    if direction[1] == "EQ":
        return None
    if gap >= 0:
        return 0
    return math.ceil(-gap / step) if step > 0 else None


def _start_and_step(
    operand: str,
    condition: _Computation,
    loop: _Instruction,
    caller: _Computation,
    body: _Computation,
) -> tuple[int, int] | None:
    """First value and change per trip of an operand of the loop's comparison."""
    if (constant := _constant(operand, condition)) is not None:
        return constant, 0
    index = _carry_index(operand, condition)
    if index is None:
        return None
    start = _constant(f"{loop.operands[0]}#{index}", caller)
    step = _step(_resolve(f"{body.root}#{index}", body), index, body)
    return None if start is None or step is None else (start, step)


def _step(operand: str, index: int, body: _Computation) -> int | None:
    """Change per trip of element `index` of the carry, computed as `operand`."""
    if _carry_index(operand, body) == index:
        return 0
    update = body.instructions.get(operand)
    if update is None or update.opcode not in ("add", "subtract"):
        return None
    left, right = update.operands
    if update.opcode == "add" and _carry_index(left, body) != index:
        left, right = right, left
    change = _constant(right, body)
    if change is None or _carry_index(left, body) != index:
        return None
    return change if update.opcode == "add" else -change


def _resolve(operand: str, computation: _Computation) -> str:
    """The operand behind copies, conversions and tuples.

    `name#i` is element i of a tuple; newer XLA prints it, older ones name a
    get-tuple-element.
    """
    name, _, index = operand.partition("#")
    instruction = computation.instructions.get(name)
    if instruction is None:
        return operand
    if index.isdigit() and instruction.opcode == "tuple":
        return _resolve(instruction.operands[int(index)], computation)
    if instruction.opcode == "get-tuple-element":
        element = re.search(r"index=(\d+)", instruction.rest)
        assert element, instruction
        return _resolve(f"{instruction.operands[0]}#{element[1]}", computation)
    if instruction.opcode in ("copy", "convert", "bitcast", "opt-barrier"):
        suffix = f"#{index}" if index else ""
        return _resolve(instruction.operands[0] + suffix, computation)
    return operand


def _constant(operand: str, computation: _Computation) -> int | None:
    """The operand's value if it is an integer constant."""
    instruction = computation.instructions.get(_resolve(operand, computation))
    if instruction is None or instruction.opcode != "constant":
        return None
    match = re.match(r"(-?\d+)\)", instruction.rest)
    return int(match[1]) if match else None


def _carry_index(operand: str, computation: _Computation) -> int | None:
    """Which element of the computation's one parameter the operand is, if it is one."""
    name, _, index = _resolve(operand, computation).partition("#")
    instruction = computation.instructions.get(name)
    is_parameter = instruction is not None and instruction.opcode == "parameter"
    return int(index) if is_parameter and index.isdigit() else None


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
        math.ceil(math.prod(_ints(dims)) * int(bits or 8) / 8)  # no bits: pred
        for bits, dims in _ARRAY.findall(shape)
    ]


def _axes(
    groups: list[tuple[int, ...]], mesh_shape: Mapping[str, int], name: str
) -> tuple[str, ...]:
    """Mesh axes whose coordinate varies inside a group."""
    members = np.array([member for group in groups for member in group], dtype=int)
    firsts = np.array([group[0] for group in groups for _ in group], dtype=int)
    num_devices = math.prod(mesh_shape.values())
    if members.size and members.max() >= num_devices:
        raise ValueError(
            f"collective {name!r} names device {members.max()}, but mesh "
            f"{dict(mesh_shape)} has {num_devices} devices: pass the shape of the mesh "
            "that the program was compiled for."
        )
    sizes = tuple(mesh_shape.values())
    places = np.unravel_index(members, sizes), np.unravel_index(firsts, sizes)
    return tuple(
        axis
        for axis, place, first in zip(mesh_shape, *places, strict=True)
        if (place != first).any()
    )


def _mesh_table(axes: str, device_ids: str | None, grouped: str) -> np.ndarray:
    """Read `mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'a','b':(2)4}`.

    `'b':(2)4` is the part of axis `b` of size 4 that has a slower part of size 2.

    Returns:
      `[groups, members]` int, positions in the flattened mesh.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'(.+?)'=(\d+)", axes)}
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, slower, size in _SUB_AXIS.findall(grouped):
        parts[name].append((int(slower), int(size)) if size else (1, sizes[name]))
    dims: list[int] = []
    inside: list[bool] = []  # does this dim belong to the group?
    for name, axis_size in sizes.items():
        done = 1
        for slower, size in sorted(parts[name]):
            dims += [slower // done, size]
            inside += [False, True]
            done = slower * size
        dims.append(axis_size // done)
        inside.append(False)
    ids = np.arange(math.prod(dims))
    if device_ids and (match := re.match(r"\[([\d,]+)\](?:T\((.*)\))?", device_ids)):
        ids = _iota(match[1], match[2])
    elif device_ids:
        ids = np.array(_ints(device_ids))
    outer_first = sorted(range(len(dims)), key=lambda dim: inside[dim])
    size = math.prod(d for d, member in zip(dims, inside, strict=True) if member)
    return ids.reshape(dims).transpose(outer_first).reshape(-1, size)


def _iota(shape: str, order: str | None) -> np.ndarray:
    """0, 1, 2, ... in `shape`, transposed to `order`."""
    ids = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return ids.transpose(_ints(order)) if order else ids


def _rows(table: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in table.tolist()]


def _ints(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


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
