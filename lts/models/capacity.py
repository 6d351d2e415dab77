"""How many rows of experts there is room for: static shapes, as arithmetic.

Shapes cannot follow the routing. Every buffer has room for the rows of even routing and
for some more; what does not fit takes part in a further round. The model code sizes its
buffers with these functions, and the cost model counts with them. All take host arrays
and broadcast.
"""

import numpy as np

Count = np.ndarray | float

SLACK = 0.25  # room over the even share for routing that is not even
# Room for chance, in standard deviations: a buffer must hold the largest of some
# thousand counts (device pairs, experts), which even routing leaves to chance. With
# SLACK alone, 64 tokens a device of 256 experts, top-8, over 64 devices take 2 rounds.
DEVIATIONS = 4.0
COLUMNS_PER_SLOT = 3  # sent with a row: a weight, and an expert's number as two digits


def room(even: Count, most: Count) -> np.ndarray:
    """Rows of a buffer whose even share is `even`; from 1 to `most`.

    >>> room(np.array([0.03, 8, 100, 1000]), 1100).tolist()
    [1, 20, 140, 1100]
    """
    rows = even + np.maximum(SLACK * even, DEVIATIONS * np.sqrt(even))
    # Rounded first: 12 rows over 3 ways are 4, not 4.000000000000001.
    rows = np.minimum(np.ceil(np.round(rows, 6)), most)
    return np.maximum(rows, 1).astype(np.int64)


def expert_capacity(tokens: Count, top_k: Count, experts: Count) -> np.ndarray:
    """Rows that one expert takes in a round, of the tokens that all experts share.

    No more than `tokens`, since a token has an expert once.
    """
    return room(np.asarray(tokens) * top_k / experts, tokens)


def even_rows(tokens: Count, top_k: Count, ways: Count) -> np.ndarray:
    """Expected rows from one device to another: t (1 - (1 - 1 / ways)^k).

    Tokens that have at least one of k evenly drawn experts there.

    Args:
      tokens: of the sending device.
      ways: devices that the experts are split over, those of `ExpertLayout.off` too.
    """
    return tokens * (1.0 - (1.0 - 1.0 / np.asarray(ways)) ** top_k)


def destination_rows(tokens: Count, top_k: Count, ways: Count) -> np.ndarray:
    """Rows that there is room for, in a round, from one device to another.

    Arguments as `even_rows`; at most `tokens`.
    """
    return room(even_rows(tokens, top_k, ways), tokens)


def exchanged_capacity(
    tokens: Count, top_k: Count, experts: Count, on_ways: Count, ways: Count
) -> np.ndarray:
    """Rows that an expert takes in a round where rows are exchanged.

    As `expert_capacity` for the tokens of all devices of the exchange, and not above
    the rows that one device receives.

    Args:
      tokens: of one device.
      experts: in all.
      on_ways: devices of an exchange.
      ways: devices that the experts are split over.
    """
    share = expert_capacity(np.asarray(on_ways) * tokens, top_k, experts)
    return np.minimum(share, on_ways * destination_rows(tokens, top_k, ways))
