"""The two levels of a collective: GPUs of one node, and nodes.

Inside a node the form is `lts.cost.operators.p2p.message_s`, with values per kind,
implementation and measured group size (2, 4, 8). Between two of these sizes the time
lies between theirs, as far along as the time of a ring would be; beyond the largest it
takes the values of the largest with the latency and the traffic of the larger group.

Values are multiples of the link's own numbers, so that they carry over to a link that
was not measured.
"""

from itertools import pairwise

import numpy as np

from lts.calibration import Calibration, load
from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.cost.operators.p2p import MESSAGE, PEAK, latency_of, message_s, p2p_time_s
from lts.hardware import Chip, Link
from lts.hops import KINDS

_RELATIVE = "h100"  # lends what a calibration does not have
_OWN = {
    "nccl_int8": ("all_reduce", "reduce_scatter"),
    "custom_vllm": ("all_reduce",),
    "custom_trtllm": ("all_reduce",),
}  # which kinds an implementation has values of its own for
_SHORTEST_HOP_S = 1e-9  # a link may have none, and shares need a scale
_CROWDING = Parameter(name="crowding", start=0.5, low=0.0, high=1.0)


def wire_bytes(kind: str, nbytes: np.ndarray, members: np.ndarray) -> np.ndarray:
    """What each GPU of a group sends, bytes, of a local operand of `nbytes`.

    Raises:
      ValueError: if the kind is unknown.
    """
    if kind == "all_gather":
        return nbytes * (members - 1)
    if kind in ("reduce_scatter", "all_to_all"):
        return nbytes * (1 - 1 / members)
    if kind == "all_reduce":
        return 2 * nbytes * (1 - 1 / members)
    if kind == "collective_permute":
        return nbytes * np.minimum(members - 1, 1.0)
    raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")


def exists(members: np.ndarray) -> np.ndarray:
    """0 for a group of one, 1 for more; a ramp for fractions between 1 and 2."""
    return np.clip(np.log2(members), 0.0, 1.0)


def inside_sizes(nbytes: np.ndarray, members: np.ndarray, link: Link) -> Sizes:
    """Sizes of the operators inside a node: `[points]` each."""
    nbytes, members = np.asarray(nbytes, float), np.asarray(members, float)
    return {
        "nbytes": nbytes,
        "members": members,
        "latency_s": latency_of(link, members),
        "bandwidth_bytes_per_s": np.full(nbytes.shape, link.bandwidth_bytes_per_s),
    }


def inside_operator(kind: str, most_bytes: float | None = None) -> Operator:
    """The model of one group size inside a node.

    Args:
      most_bytes: of an engine's own all-reduce, the largest that it takes; a constant
        among the values.
    """
    parameters = MESSAGE
    if most_bytes is not None:
        low, high = most_bytes * 0.999, most_bytes * 1.001
        most = Parameter(name="most_bytes", start=most_bytes, low=low, high=high)
        parameters = (*MESSAGE, most)

    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        wire = wire_bytes(kind, sizes["nbytes"], sizes["members"])
        rate = sizes["bandwidth_bytes_per_s"]
        return message_s(wire, sizes["latency_s"], rate, values)

    def bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        moved = wire_bytes(kind, sizes["nbytes"], sizes["members"])
        if kind == "all_reduce":  # a switch that adds up needs each byte once
            moved = np.minimum(moved, sizes["nbytes"])
        return moved / (PEAK * sizes["bandwidth_bytes_per_s"])

    return Operator(name=kind, parameters=parameters, time_s=time_s, bound_s=bound_s)


def _internode_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
    n, m = sizes["inside"], sizes["across"]
    rate = sizes["bandwidth_bytes_per_s"] / n ** values["crowding"]
    wire = wire_bytes("all_reduce", sizes["nbytes"] / n, m)
    return sizes["inside_s"] + message_s(wire, 2 * sizes["latency_s"], rate, values)


def _internode_bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
    wire = wire_bytes("all_reduce", sizes["nbytes"] / sizes["inside"], sizes["across"])
    return wire / (PEAK * sizes["bandwidth_bytes_per_s"])


INTERNODE = Operator(
    name="all_reduce",
    parameters=(*MESSAGE, _CROWDING),
    time_s=_internode_s,
    bound_s=_internode_bound_s,
)
"""All-reduces across nodes. `inside_s` is the fixed time of the part inside a node;
`crowding` is how the rate of a port falls with the ports in use (0: not at all)."""


def _values(key: str, calibration: Calibration) -> Values:
    held = calibration if key in calibration.fits else load(_RELATIVE)
    return held.fit(key).values


def measured_groups(prefix: str, calibration: Calibration) -> list[int]:
    """Measured group sizes, ascending: the numbers at the ends of keys."""
    keys = (key for key in calibration.fits if key.startswith(prefix))
    return sorted(int(key.removeprefix(prefix)) for key in keys)


def inside_s(
    kind: str,
    nbytes: np.ndarray,
    members: np.ndarray,
    calibration: Calibration,
    link: Link,
    implementation: str,
) -> np.ndarray:
    """Seconds inside a node, 0 for one GPU; `[...]`."""
    if kind == "collective_permute":
        values = _values("p2p/nvlink", calibration)
        return exists(members) * p2p_time_s(nbytes, link=link, values=values)
    if kind not in _OWN.get(implementation, KINDS):
        implementation = "nccl"
    prefix = f"{kind}/{implementation}/"
    if not (groups := measured_groups(prefix, calibration)):
        calibration = load(_RELATIVE)
        groups = measured_groups(prefix, calibration)

    def time_s(group: int) -> np.ndarray:
        low = 2 if group == groups[0] else group
        high = np.inf if group == groups[-1] else group
        count = np.clip(members, low, high)
        return _group_s(kind, nbytes, count, group, calibration, link, implementation)

    hop_s = max(link.hop_latency_s, _SHORTEST_HOP_S)

    def ring_s(count: np.ndarray | float) -> np.ndarray:
        count = np.asarray(count, float)
        sent_s = wire_bytes(kind, nbytes, count) / link.bandwidth_bytes_per_s
        return hop_s * (count - 1) + sent_s

    found = lower_s = time_s(groups[0])
    for lower, upper in pairwise(groups):
        upper_s = time_s(upper)
        start, end = ring_s(lower), ring_s(upper)
        way = np.clip((ring_s(members) - start) / (end - start), 0.0, 1.0)
        found = found + way * (upper_s - lower_s)
        lower_s = upper_s
    return exists(members) * found


def _group_s(
    kind: str,
    nbytes: np.ndarray,
    members: np.ndarray,
    group: int,
    calibration: Calibration,
    link: Link,
    implementation: str,
) -> np.ndarray:
    """Seconds for `members` GPUs with the values fitted to `group` of them; `[...]`.

    An engine's own all-reduce hands over to NCCL on a ramp, from the largest buffer
    that it takes to twice that, and from the largest group to twice that.
    """
    values = _values(f"{kind}/{implementation}/{group}", calibration)
    most = values.get("most_bytes", np.inf)
    own_s = message_s(
        wire_bytes(kind, np.minimum(nbytes, most), members),
        latency_of(link, members),
        link.bandwidth_bytes_per_s,
        values,
    )
    if "most_bytes" not in values:
        return own_s

    def nccl_s(taken: np.ndarray) -> np.ndarray:
        return _group_s(kind, taken, members, group, calibration, link, "nccl")

    after_s = nccl_s(np.maximum(nbytes, 2 * most))
    share = np.clip(nbytes / most - 1, 0.0, 1.0)
    here_s = own_s + share * np.maximum(after_s - own_s, 0.0)
    larger = np.clip(np.log2(members / group), 0.0, 1.0)
    return here_s + larger * np.maximum(nccl_s(nbytes) - here_s, 0.0)


def across_values(kind: str, calibration: Calibration) -> Values:
    """What is known about transfers between nodes."""
    if kind != "collective_permute" and "all_reduce/internode" in calibration.fits:
        return calibration.fits["all_reduce/internode"].values
    return _values("p2p/internode", calibration)


def across_s(
    wire: np.ndarray,
    inside: np.ndarray,
    across: np.ndarray,
    phases: float,
    link: Link,
    values: Values,
) -> np.ndarray:
    """Seconds between nodes, `[...]`.

    Args:
      wire: bytes that every GPU sends.
      phases: how often the latency is paid.
    """
    rate = link.bandwidth_bytes_per_s / inside ** values.get("crowding", 0.0)
    return message_s(wire, phases * latency_of(link, across), rate, values)
