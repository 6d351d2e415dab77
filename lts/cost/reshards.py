"""Prices of reshards: the hops from layout to layout, and what each set of them takes.

Which hops lead from one layout to another depends on neither sizes nor bytes, and few
sets of them are distinct (about a thousand with three axes, whatever the rank). So a
table by pairs of layouts holds the number of a set, and a second one the seconds of
each set under all degrees, at byte counts (`KNOTS`) between which time is linear.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lts.cost.collective import collective_time_s
from lts.cost.pricing import Pricing
from lts.hops import KINDS, coded_hops, every_state
from lts.mesh import Degrees

KNOTS = 2.0 ** np.concatenate([np.arange(8, 32, 0.5), np.arange(32, 42)])
"""Bytes of the global array at which reshards are priced, 256 B to 2 TiB: two per
doubling where protocols change."""

_KINDS = (*KINDS, "slice")

GROWTH = {
    "all_gather": 1.0,
    "reduce_scatter": -1.0,
    "slice": -1.0,
    "all_reduce": 0.0,
    "all_to_all": 0.0,
    "collective_permute": 0.0,
}
"""Power of the number of devices by which the local part grows in a hop."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reshards:
    """Prices between all layouts of arrays of some ranks.

    Attributes:
      sets: per rank, the number of the set of hops; int
        `[patterns, source codes, target codes]`, layouts coded as in
        `lts.hops.coded_hops`.
      pattern: which axes have more than one device, as a number; int `[degrees]`.
      time_s: of each set, float `[degrees, sets, knots]`.
      across: whether a set has a hop between nodes; bool `[degrees, sets]`.
      taken, given: the largest part of the whole array that a hop of a set takes and
        gives on one device, 0 of the empty set; `[degrees, sets]`.
    """

    sets: dict[int, np.ndarray]
    pattern: np.ndarray
    time_s: np.ndarray
    across: np.ndarray
    taken: np.ndarray
    given: np.ndarray

    def crosses(self, rank: int, d: int, source: int, target: int) -> bool:
        """Whether the way from one layout code to another leaves a node."""
        number = self.sets[rank][self.pattern[d], source, target]
        return bool(self.across[d, number])

    def of(self, rank: int, d: int, source: int, target: int, nbytes: float) -> float:
        """Seconds from one layout code to another of an array of `nbytes`."""
        number = self.sets[rank][self.pattern[d], source, target]
        return float(np.interp(nbytes, KNOTS, self.time_s[d, number]))


@functools.lru_cache(maxsize=64)
def _hop_sets(
    rank: int, present: tuple[bool, ...]
) -> tuple[tuple[tuple[int, ...], ...], np.ndarray]:
    """Distinct sets of hops, as sorted codes, and which one every way has."""
    axes = len(present)
    ways = (rank + 2) ** axes * (rank + 1) ** axes
    depth, columns = np.zeros(ways, np.int64), list[np.ndarray]()
    for hop in coded_hops(rank, present):
        code = _code(_KINDS.index(hop.kind), hop.axes, hop.held, axes)
        place = depth[hop.where]
        while place.size and len(columns) <= place.max():
            columns.append(np.zeros(ways, np.int64))
        for column in np.unique(place):
            taken = place == column
            columns[column][hop.where[taken]] = code[taken]
        depth[hop.where] += 1
    columns = columns or [np.zeros(ways, np.int64)]
    # one number per way, column by column: sorting rows of a wide array is slow
    number = np.zeros(ways, np.int64)
    stacked = np.sort(np.stack(columns), axis=0)
    for column in stacked:
        number = np.unique(number * (column.max() + 1) + column, return_inverse=True)[1]
    first = np.unique(number, return_index=True)[1]
    sets = tuple(
        tuple(int(code) for code in stacked[:, place] if code) for place in first
    )
    return sets, number


def _code(kind: int, taking: np.ndarray, held: np.ndarray, axes: int) -> np.ndarray:
    bits = taking.astype(np.int64) * 2**axes + held
    return 1 + kind * 4**axes + bits


def reshards(
    ranks: Iterable[int], degrees: Sequence[Degrees], pricing: Pricing
) -> Reshards:
    """Prices between all layouts of arrays of these ranks, under all degrees."""
    sizes = np.array([[axis.size for axis in d.axes] for d in degrees])
    inside = np.array([[axis.inside for axis in d.axes] for d in degrees], bool)
    sizes, inside = sizes.reshape(len(degrees), -1), inside.reshape(len(degrees), -1)
    patterns, pattern = np.unique(sizes > 1, axis=0, return_inverse=True)
    axes = sizes.shape[1]
    numbers: dict[tuple[int, ...], int] = {(): 0}
    tables = {}
    for rank in sorted(set(ranks)):
        shape = (rank + 2) ** axes, (rank + 1) ** axes
        found = []
        for present in patterns:
            sets, number = _hop_sets(rank, tuple(present.tolist()))
            own = [numbers.setdefault(codes, len(numbers)) for codes in sets]
            found.append(np.array(own, np.int32)[number].reshape(shape))
        tables[rank] = np.stack(found)
    taken, given = _shares([*numbers], sizes)
    return Reshards(
        sets=tables,
        pattern=pattern.ravel(),
        time_s=_times_s([*numbers], sizes, inside, pricing),
        across=_across([*numbers], (sizes > 1) & ~inside),
        taken=taken,
        given=given,
    )


def _across(sets: Sequence[tuple[int, ...]], outer: np.ndarray) -> np.ndarray:
    """Which sets have a hop over one of the outer axes; `[degrees, sets]`."""
    axes = outer.shape[1]
    chosen = every_state(2, axes).astype(bool)
    found = np.zeros((len(outer), len(sets)), bool)
    for number, codes in enumerate(sets):
        for code in codes:
            taking = chosen[(code - 1) % 4**axes // 2**axes]
            found[:, number] |= (taking & outer).any(-1)
    return found


def _shares(
    sets: Sequence[tuple[int, ...]], sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`Reshards.taken` and `given`."""
    axes = sizes.shape[1]
    chosen = every_state(2, axes).astype(bool)
    taken, given = np.zeros((2, len(sizes), len(sets)))
    for number, codes in enumerate(sets):
        for code in codes:
            kind, bits = divmod(code - 1, 4**axes)
            taking, held = (chosen[part] for part in divmod(bits, 2**axes))
            before = 1 / np.where(held, sizes, 1).prod(-1)
            grown = np.where(taking, sizes, 1).prod(-1) ** GROWTH[_KINDS[kind]]
            taken[:, number] = np.maximum(taken[:, number], before)
            given[:, number] = np.maximum(given[:, number], before * grown)
    return taken, given


def _times_s(
    sets: Sequence[tuple[int, ...]],
    sizes: np.ndarray,
    inside: np.ndarray,
    pricing: Pricing,
) -> np.ndarray:
    axes = sizes.shape[1]
    chosen = every_state(2, axes).astype(bool)  # sets of axes, by their bits
    total = np.zeros((len(sizes), len(sets), len(KNOTS)))
    users: dict[int, list[int]] = {}
    for number, codes in enumerate(sets):
        for code in codes:
            users.setdefault(code, []).append(number)
    for code, numbers in users.items():
        kind, bits = divmod(code - 1, 4**axes)
        taking, held = (chosen[part] for part in divmod(bits, 2**axes))
        ways = np.where(held, sizes, 1).prod(-1)[:, None]
        if _KINDS[kind] == "slice":
            ways = ways * np.where(taking, sizes, 1).prod(-1)[:, None]
            time_s = slice_time_s(KNOTS / ways, pricing)
        else:
            time_s = collective_time_s(
                _KINDS[kind],
                KNOTS / ways,
                np.where(taking & inside, sizes, 1).prod(-1)[:, None],
                np.where(taking & ~inside, sizes, 1).prod(-1)[:, None],
                pricing,
            )
        total[:, numbers] += time_s[:, None]
    return total


def slice_time_s(nbytes: np.ndarray, pricing: Pricing) -> np.ndarray:
    """Seconds of cutting a slice of `nbytes` out: it is read and written.

    Compilers copy what a contraction reads. Were it free, a search would keep weights
    whole and slice them in every step.
    """
    chip = pricing.chip
    return pricing.launch_s + 2 * nbytes / chip.achieved_bytes_per_s
