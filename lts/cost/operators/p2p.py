"""One message over a link, and what a point-to-point transfer takes."""

from collections.abc import Mapping

import numpy as np

from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.hardware import Chip, Link

PEAK = 1.47
"""What no traffic beats, of `Link.bandwidth_bytes_per_s`, which is what is achieved.

Source: datasheet rates over those of the presets, 1.25 (networks) to 1.47 (NVLink 3).
"""

MESSAGE = (
    Parameter(name="latency", start=0.8, low=0.05, high=5.0),
    Parameter(name="rise", start=0.2, low=0.001, high=1.5),
    Parameter(name="rise_bytes", start=2.0e4, low=1.0e3, high=2.0e5),
    Parameter(name="later_rise", start=1.0, low=0.001, high=5.0),
    Parameter(name="later_rise_bytes", start=2.0e6, low=2.0e5, high=4.0e7),
    Parameter(name="bandwidth", start=0.9, low=0.02, high=PEAK),
)


def message_s(
    wire_bytes: np.ndarray,
    latency_s: np.ndarray,
    bandwidth_bytes_per_s: np.ndarray | float,
    values: Values,
) -> np.ndarray:
    """Seconds of one message, or of one collective that sends as much.

    A latency that rises twice and saturates, where the protocol changes, and bytes over
    bandwidth. The rises stand for NCCL's LL, LL128 and Simple protocols: below tens of
    KB, and from about a MB.

    Args:
      wire_bytes: what the busiest GPU sends, `[...]`.
      latency_s, bandwidth_bytes_per_s: of the link.
      values: `latency` and `bandwidth` as multiples of the link's, `rise` and
        `later_rise` as multiples of the latency, the bytes at which half is risen.
    """
    early = _risen(wire_bytes / values["rise_bytes"])
    late = _risen(wire_bytes / values["later_rise_bytes"])
    rises = 1 + values["rise"] * early + values["later_rise"] * late
    rate = values["bandwidth"] * bandwidth_bytes_per_s
    return values["latency"] * latency_s * rises + wire_bytes / rate


def _risen(ratio: np.ndarray) -> np.ndarray:
    """From 0 to 1, half at 1; flat at both ends."""
    return 1 - 1 / (1 + np.square(ratio))


def latency_of(link: Link, members: np.ndarray) -> np.ndarray:
    """Seconds before anything arrives, by `Link`'s formula; from one member up."""
    return link.latency_s + link.hop_latency_s * np.log2(members)


def p2p_time_s(nbytes: np.ndarray, *, link: Link, values: Values) -> np.ndarray:
    """Seconds to send `nbytes` from one GPU to another over a link; vectorised."""
    sizes = p2p_sizes(nbytes, link)
    return message_s(
        sizes["nbytes"], sizes["latency_s"], sizes["bandwidth_bytes_per_s"], values
    )


def p2p_sizes(nbytes: np.ndarray, link: Link) -> Mapping[str, np.ndarray]:
    """Sizes of the operator `P2P`: the bytes, and what the link is."""
    nbytes = np.asarray(nbytes, float)
    return {
        "nbytes": nbytes,
        "latency_s": np.full(nbytes.shape, latency_of(link, np.array(2.0))),
        "bandwidth_bytes_per_s": np.full(nbytes.shape, link.bandwidth_bytes_per_s),
    }


def _time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
    return message_s(
        sizes["nbytes"], sizes["latency_s"], sizes["bandwidth_bytes_per_s"], values
    )


def _bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
    return sizes["nbytes"] / (PEAK * sizes["bandwidth_bytes_per_s"])


# below PEAK: on A100, 33 MB arrive at a rate that longer messages fall short of
_BANDWIDTH = Parameter(name="bandwidth", start=0.9, low=0.02, high=1.3)

P2P = Operator(
    name="p2p",
    parameters=(*MESSAGE[:-1], _BANDWIDTH),
    time_s=_time_s,
    bound_s=_bound_s,
)
