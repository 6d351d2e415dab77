"""HLO text cut into computations, and how often each of them runs.

From ENTRY, every reference to another computation passes on how often it runs
(`executions`): a while body its trip count (`_trip_count`), a called computation or a
branch once per call site.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?(\S+) = (.*?) ([a-z][\w-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(?:to_apply|calls|true_computation|false_computation"
    r"|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_KNOWN_TRIPS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation: `name = shape opcode(rest`."""

    name: str
    shape: str
    opcode: str
    rest: str  # operands, closing parenthesis, attributes

    @property
    def operands(self) -> list[str]:
        """Operand names (or the literal of a constant), without shapes and `%`."""
        return [item.split()[-1].lstrip("%") for item in items(self.rest)]


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Instructions by name; `root` is the name of the result."""

    instructions: dict[str, Instruction]
    root: str


def parse_computations(hlo: str) -> tuple[dict[str, Computation], str]:
    """Computations by name, and the name of ENTRY."""
    found: dict[str, Computation] = {}
    instructions: dict[str, Instruction] = {}
    entry = current = None
    for line in _INDEX_COMMENT.sub("", hlo).splitlines():
        if header := _HEADER.match(line):
            current, instructions = header[2], {}
            found[current] = Computation(instructions=instructions, root="")
            if header[1]:
                entry = current
        elif current and (match := _INSTRUCTION.match(line)):
            is_root, name, shape, opcode, rest = match.groups()
            instructions[name] = Instruction(
                name=name, shape=shape, opcode=opcode, rest=rest
            )
            if is_root:
                found[current] = Computation(instructions=instructions, root=name)
    if entry is None:
        raise ValueError(
            f"no ENTRY computation in HLO text of {len(hlo)} characters: pass the text "
            "of one whole module, as `compiled.as_text()` or an XLA dump gives it."
        )
    return found, entry


def executions(
    computations: Mapping[str, Computation], entry: str
) -> dict[str, tuple[int, bool]]:
    """How often each computation runs, and whether all trip counts were known."""
    called = {name: _calls(name, computations) for name in computations}
    graph = {name: {callee for callee, *_ in calls} for name, calls in called.items()}
    callees_first = list(TopologicalSorter(graph).static_order())
    found = {entry: (1, True)}
    for name in reversed(callees_first):
        if name not in found:
            continue  # nothing that runs refers to it
        count, known = found[name]
        for callee, times, times_known in called[name]:
            before, all_known = found.get(callee, (0, True))
            found[callee] = (
                before + count * times,
                all_known and known and times_known,
            )
    return found


def _calls(
    name: str, computations: Mapping[str, Computation]
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


def _while_part(loop: Instruction, part: str) -> str:
    match = re.search(rf"\b{part}=%?([\w.\-]+)", loop.rest)
    if not match:
        raise ValueError(f"while {loop.name!r} has no {part}: is the text cut off?")
    return match[1]


def _trip_count(
    loop: Instruction,
    caller: Computation,
    computations: Mapping[str, Computation],
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
    operand: str, computation: Computation
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
    left = _carry_plus(instruction.operands[0], computation)
    right = left and _carry_plus(instruction.operands[1], computation)
    if instruction.opcode == "add" and left and left[0] is None:
        left, right = right, left
    if not left or not right or right[0] is not None:
        return None
    change = right[1] if instruction.opcode == "add" else -right[1]
    return left[0], left[1] + change


def _resolve(operand: str, computation: Computation) -> str:
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


def items(text: str) -> list[str]:
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
