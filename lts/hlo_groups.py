"""Who talks to whom in a collective: the groups in its HLO text, and their mesh axes.

XLA spells groups in four ways: listed, as an iota (counted up in one shape, reshaped to
another), by the axes of a mesh, and empty for all devices in one group. Permutes list
source-target pairs. Device numbers are positions in the flattened mesh, which gives a
group its axes.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

_MESH = re.compile(r"groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_IOTA = re.compile(r"groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"(?:groups|pairs)=\{(\{.*?\})\}")
_SUB_AXIS = re.compile(r"'(.+?)'(?::\((\d+)\)(\d+))?")


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


def varying_axes(
    groups: list[tuple[int, ...]], mesh_shape: Mapping[str, int], name: str
) -> tuple[str, ...]:
    """Mesh axes whose coordinate varies inside a group, in mesh order.

    Args:
      groups: positions in the flattened mesh, as `parse_groups` gives them.
      mesh_shape: size of each mesh axis, slowest first.
      name: of the collective, for the error.

    Raises:
      ValueError: if a group names a device outside the mesh.

    >>> varying_axes([(0, 4), (1, 5)], {"dp": 2, "tp": 4}, "all-reduce.1")
    ('dp',)
    """
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
