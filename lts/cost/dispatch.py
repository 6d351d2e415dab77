"""What `lts.models.dispatch` sends and computes, counted in closed form.

Routing is even unless `skew` says otherwise: the busiest destination, or expert, then
gets `skew` times its even share, at least 1. Sizes of buffers come from the functions
that the model code sizes them with. Host arrays, broadcast; counts may be fractions.
"""

import numpy as np

from lts.models.capacity import COLUMNS_PER_SLOT, destination_rows, even_rows, room

Count = np.ndarray | float


def all_to_all_bytes(
    tokens: Count,
    top_k: Count,
    on_ways: Count,
    ways: Count,
    width: Count,
    itemsize: Count,
) -> tuple[np.ndarray, np.ndarray]:
    """Local bytes of the two all-to-alls of a round, there and back.

    Operand and result are alike. Each row takes k weights and expert numbers along.

    Args:
      tokens: of one device.
      on_ways: devices of an exchange.
      ways: devices that the experts are split over: `on_ways`, or more if axes that do
        not shard tokens split experts too.
      width: elements of a row.
      itemsize: bytes of an element.
    """
    rows = on_ways * destination_rows(tokens, top_k, ways)
    back = rows * width * itemsize
    return back + rows * COLUMNS_PER_SLOT * top_k * itemsize, back


def rounds(tokens: Count, top_k: Count, ways: Count, skew: Count = 1.0) -> np.ndarray:
    """Rounds of exchange until the busiest destination has all its rows.

    It gets `skew` times its even share, and no more rows than there are tokens.

    Args:
      tokens: of one device.
      ways: devices that the experts are split over.
    """
    busiest = np.minimum(skew * even_rows(tokens, top_k, ways), tokens)
    return _trips(busiest, destination_rows(tokens, top_k, ways))


def experts_touched(pairs: Count, experts: Count, skew: Count = 1.0) -> np.ndarray:
    """Expected number of experts that have a row: e (1 - (1 - 1 / e)^pairs).

    A grouped kernel reads the weights of these only. Skew is taken as if the pairs fell
    on `experts / skew` of the experts, each as busy as the busiest.

    Args:
      pairs: (token, expert) pairs.
      experts: that these pairs may fall on.
    """
    drawn = np.maximum(experts / np.asarray(skew, float), 1.0)
    return np.minimum(drawn * (1.0 - (1.0 - 1.0 / drawn) ** pairs), pairs)


def expert_rows(
    pairs: Count, experts: Count, skew: Count = 1.0, most: Count = np.inf
) -> np.ndarray:
    """Rows of the grouped products, padding and all rounds included.

    Args:
      pairs: (token, expert) pairs that fall on these experts if routing is even.
      experts: of one device.
      skew: rows of the busiest expert over the mean; each expert is padded to as many
        rounds as the busiest takes.
      most: rows that there are to choose from; no expert has room for more.
    """
    even = np.asarray(pairs) / experts
    capacity = room(even, most)
    return experts * capacity * _trips(skew * even, capacity)


def _trips(rows: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    # Rounded first, as buffers are: what fits by arithmetic fits.
    return np.maximum(np.ceil(np.round(rows / capacity, 6)), 1.0)
