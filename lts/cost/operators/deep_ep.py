"""Expert dispatch and combine by all-to-all kernels: what DeepEP takes.

A dispatch sends each token in float8, with a scale per 128 elements, to the ranks that
hold its experts; a combine brings bfloat16 back. There are kernels for throughput
(`normal`), which send a token once to each rank, and over the network once to each node
whose GPUs pass it on, and for low latency, which send it once per expert. Either has
one form inside a node and one across nodes:

    time     latency + hop * log2(nodes) + expert * experts + element * hidden
             + wire + rise * wire / (wire + half)
    wire     (link^6 + work^6)^(1/6)
    link     bytes that leave a rank over the link that binds, NVLink or its port of the
             network, at a share of the bandwidth
    work     normal: what passes a rank / (SMs * rate of one); low latency inside a
             node: bytes / (experts * rate of one), as warps serve one expert each

`parameters` lists which form has which terms. Time grows with tokens, hidden, topk and
GPUs. More experts may shorten it a little: fewer of a token's then lie on different
ranks. Ranks per token follow exactly from drawing topk different experts at random.

Source: kernels of github.com/deepseek-ai/DeepEP; which terms matter was chosen by fits
on measured rows (`lts.calibrate.tables.deep_ep`).
"""

from collections.abc import Mapping

import numpy as np
from scipy.special import gammaln

from lts.cost.operators.base import Operator, Parameter, Sizes, Values
from lts.cost.operators.p2p import PEAK
from lts.hardware import Chip, Link

BEST_SMS = 24.0
"""SMs that the normal kernels take: the fastest of those measured, 4 to 24."""

_BYTES = {"dispatch": 1 + 4 / 128, "combine": 2.0}  # of one element of a token
_NORM = 6
_TINY = 1e-300
_NOTIFY_S = 5e-6
_NOTIFY_HOP_S = 26e-6

_RANGES = {
    "latency_s": (1e-6, 1e-4),
    "hop_s": (1e-8, 1e-4),
    "element_s": (1e-12, 1e-8),
    "expert_s": (1e-10, 1e-6),
    "bandwidth": (0.1, PEAK),
    "sm_rate": (1e9, 1e11),
    "group_rate": (1e8, 1e11),
    "own": (1e-3, 10.0),
    "token_bytes": (1.0, 1e5),
    "forward": (0.01, 10.0),
    "rise_s": (1e-8, 1e-3),
    "half_s": (1e-7, 1e-2),
    "congestion": (0.01, 10.0),
    "congestion_s": (1e-6, 1e-1),
}
_NORMAL_INSIDE = "latency_s element_s bandwidth sm_rate own token_bytes rise_s half_s"
_NORMAL_ACROSS = (
    "latency_s hop_s bandwidth sm_rate forward rise_s half_s congestion congestion_s"
)
_LOW_INSIDE = "latency_s element_s expert_s bandwidth group_rate"
_LOW_ACROSS = "latency_s hop_s expert_s bandwidth"
# key: names, and their values fitted on H100s
_STARTS = {
    "dispatch/normal_inside": (
        _NORMAL_INSIDE,
        (2.5e-5, 8e-11, 0.93, 2.2e10, 0.01, 9e3, 1.6e-5, 2.2e-5),
    ),
    "combine/normal_inside": (
        _NORMAL_INSIDE,
        (2.5e-5, 2.8e-9, 0.94, 3.2e10, 2.7, 5e3, 5.4e-5, 1.9e-4),
    ),
    "dispatch/normal_across": (
        _NORMAL_ACROSS,
        (1.6e-5, 1.0e-5, 1.22, 1.6e10, 0.75, 4.6e-5, 6.8e-5, 2.1, 4.3e-5),
    ),
    "combine/normal_across": (
        _NORMAL_ACROSS,
        (4.2e-5, 6.0e-6, 1.23, 1.4e10, 1.0, 1.8e-4, 2.6e-4, 2.8, 2e-2),
    ),
    "dispatch/low_latency_inside": (_LOW_INSIDE, (7.8e-6, 2e-10, 1.4e-8, 0.75, 3.4e9)),
    "combine/low_latency_inside": (_LOW_INSIDE, (9.5e-6, 2e-10, 5e-9, 0.65, 2.1e10)),
    "dispatch/low_latency_across": (_LOW_ACROSS, (1.1e-5, 3.6e-6, 2.2e-8, 1.20)),
    "combine/low_latency_across": (_LOW_ACROSS, (1.8e-5, 4e-7, 2.9e-8, 1.17)),
}


def fit_key(phase: str, place: str, *, low_latency: bool) -> str:
    """Key of a fit, as in `lts.calibration`.

    >>> fit_key("dispatch", "inside", low_latency=False)
    'dispatch/normal_inside'
    """
    return f"{phase}/{'low_latency' if low_latency else 'normal'}_{place}"


def dispatch_time_s(
    tokens_per_rank: np.ndarray,
    hidden: np.ndarray,
    topk: np.ndarray,
    num_experts: np.ndarray,
    gpus_inside: np.ndarray,
    nodes: np.ndarray,
    *,
    low_latency: bool,
    values: Mapping[str, Values],
    chip: Chip,
    intra: Link,
    inter: Link,
    node_limit: float = np.inf,
    sms: float = BEST_SMS,
) -> np.ndarray:
    """Seconds to send tokens to the ranks of their experts; sizes broadcast.

    Normal kernels across nodes tell the ranks first what comes: add `notify_time_s`.

    Args:
      tokens_per_rank: that each rank sends; need not be whole.
      hidden: elements of a token.
      topk, num_experts: experts that a token goes to, and of all ranks.
      gpus_inside, nodes: GPUs of the group in each of its nodes, and these.
      low_latency: by the low-latency kernels, else by the normal ones.
      values: by place, `inside` a node and `across` nodes, of the fits
        `fit_key("dispatch", place, ...)`; a place where no size lies may lack.
      chip: what it runs on.
      intra, inter: links inside a node and between nodes.
      node_limit: nodes that the experts of one token may lie on where the router sees
        to that, 4 in DeepSeek-V3; normal kernels only.
      sms: SMs that the normal kernels take.
    """
    sizes = {
        "tokens": tokens_per_rank,
        "hidden": hidden,
        "topk": topk,
        "num_experts": num_experts,
        "gpus": gpus_inside,
        "nodes": nodes,
        "node_limit": node_limit,
        "sms": sms,
        "congested": 0.0,
    }
    return _time_s("dispatch", low_latency, sizes, values, chip, (intra, inter))


def combine_time_s(
    tokens_per_rank: np.ndarray,
    hidden: np.ndarray,
    topk: np.ndarray,
    num_experts: np.ndarray,
    gpus_inside: np.ndarray,
    nodes: np.ndarray,
    *,
    low_latency: bool,
    values: Mapping[str, Values],
    chip: Chip,
    intra: Link,
    inter: Link,
    node_limit: float = np.inf,
    sms: float = BEST_SMS,
) -> np.ndarray:
    """Seconds to bring the rows of the experts back and sum them.

    Arguments are those of `dispatch_time_s`, with `values` of the fits
    `fit_key("combine", place, ...)`.
    """
    sizes = {
        "tokens": tokens_per_rank,
        "hidden": hidden,
        "topk": topk,
        "num_experts": num_experts,
        "gpus": gpus_inside,
        "nodes": nodes,
        "node_limit": node_limit,
        "sms": sms,
        "congested": 0.0,
    }
    return _time_s("combine", low_latency, sizes, values, chip, (intra, inter))


def notify_time_s(nodes: np.ndarray) -> np.ndarray:
    """Seconds before a normal dispatch or combine across nodes; 0 on one node.

    Source: `notify_us` of the measured rows up to 256 tokens on 2, 4 and 8 nodes,
    medians of both phases together 33, 54 and 88 us; on one node it was not recorded.
    """
    nodes = np.asarray(nodes, float)
    return np.where(nodes > 1, _NOTIFY_S + _NOTIFY_HOP_S * np.log2(nodes), 0.0)


def distinct(experts: np.ndarray, topk: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Expected number of groups that `topk` different experts lie in.

    Each group holds `experts / groups` of them; it gets none with the probability that
    all are drawn from the others, `C(others, topk) / C(experts, topk)`. There must be
    `topk` experts at least.
    """
    experts, topk, groups = (np.asarray(x, float) for x in (experts, topk, groups))
    others = experts * (1 - 1 / groups)
    room = others - topk + 1  # none is left out from 0 down
    log_none = (
        gammaln(others + 1)
        - gammaln(np.maximum(room, _TINY))
        + gammaln(experts - topk + 1)
        - gammaln(experts + 1)
    )
    return groups * (1 - np.exp(np.minimum(log_none, 0.0)))


def parameters(key: str) -> tuple[Parameter, ...]:
    """What is fitted under a key; starts are near the fits on H100s.

    Times in seconds: `element_s` per element of a token, `expert_s` per expert. Rates
    of an SM and of an expert's warps in bytes/s. `bandwidth` multiplies the link's,
    `own` is the work for a token itself and `forward` that for a node that it goes to,
    over that for a rank, `token_bytes` work for a token of any width. A congested
    network is slower by up to `congestion`, half of it at `congestion_s`.
    """
    names, starts = _STARTS[key]
    return tuple(
        Parameter(name=name, start=start, low=_RANGES[name][0], high=_RANGES[name][1])
        for name, start in zip(names.split(), starts, strict=True)
    )


def operator(key: str) -> Operator:
    """The model of a key.

    Sizes are `tokens` and `gpus` (per rank, inside a node), `hidden`, `topk`,
    `num_experts`, `nodes`, `node_limit`, `sms`, `congested` from 0 to 1, and
    `bandwidth_bytes_per_s` of the link that binds: the inner one, or across nodes the
    outer one.
    """
    phase, kernel = key.split("/")
    width = _BYTES[phase]

    def time_s(sizes: Sizes, values: Values, chip: Chip) -> np.ndarray:
        sizes = {name: np.asarray(size, float) for name, size in sizes.items()}
        wire = _wire_s(sizes, values, width, kernel)
        total = (
            values["latency_s"]
            + values.get("hop_s", 0.0) * np.log2(sizes["nodes"])
            + values.get("element_s", 0.0) * sizes["hidden"]
            + values.get("expert_s", 0.0) * sizes["num_experts"]
            + wire
        )
        if "rise_s" in values:
            total = total + values["rise_s"] * wire / (wire + values["half_s"])
        return np.maximum(total, bound_s(sizes, chip))

    def bound_s(sizes: Sizes, chip: Chip) -> np.ndarray:
        sizes = {name: np.asarray(size, float) for name, size in sizes.items()}
        sent = _sent_bytes(sizes, width, kernel)
        return sent / (PEAK * sizes["bandwidth_bytes_per_s"])

    return Operator(
        name=phase, parameters=parameters(key), time_s=time_s, bound_s=bound_s
    )


def _time_s(
    phase: str,
    low_latency: bool,
    sizes: Sizes,
    values: Mapping[str, Values],
    chip: Chip,
    links: tuple[Link, Link],
) -> np.ndarray:
    """Each size at its place: inside one node, or across several."""
    nodes = np.asarray(sizes["nodes"], float)
    times = []
    for place, link, there in zip(
        ("inside", "across"), links, (nodes <= 1, nodes > 1), strict=True
    ):
        if there.any():
            model = operator(fit_key(phase, place, low_latency=low_latency))
            bandwidth = np.asarray(link.bandwidth_bytes_per_s)
            full = {**sizes, "bandwidth_bytes_per_s": bandwidth}
            times.append((there, model.time_s(full, values[place], chip)))
    return np.select([there for there, _ in times], [time for _, time in times])


def _copies(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Ranks and nodes that a token goes to, normal kernels."""
    limit = np.minimum(sizes["nodes"], sizes["node_limit"])
    experts = sizes["num_experts"] * limit / sizes["nodes"]
    experts = np.maximum(experts, sizes["topk"])  # else there is no such routing
    ranks = distinct(experts, sizes["topk"], limit * sizes["gpus"])
    return ranks, distinct(experts, sizes["topk"], limit)


def _sent_bytes(sizes: Sizes, width: float, kernel: str) -> np.ndarray:
    """Bytes that leave a rank over the link that binds."""
    inside = kernel.endswith("inside")
    ranks, nodes = _copies(sizes)
    normal = ranks if inside else nodes
    copies = sizes["topk"] if kernel.startswith("low") else normal
    ways = sizes["gpus"] if inside else sizes["nodes"]
    return sizes["tokens"] * copies * (1 - 1 / ways) * sizes["hidden"] * width


def _wire_s(sizes: Sizes, values: Values, width: float, kernel: str) -> np.ndarray:
    """Seconds of the slower of the link and the SMs."""
    tokens, token = sizes["tokens"], sizes["hidden"] * width
    sent, passed = _sent_bytes(sizes, width, kernel), np.zeros(())
    ranks, nodes = _copies(sizes)
    if kernel == "normal_inside":
        work = (ranks + values["own"]) * token + values["token_bytes"]
        passed = tokens * work / (values["sm_rate"] * sizes["sms"])
    elif kernel == "normal_across":
        copies = ranks + values["forward"] * nodes
        passed = tokens * copies * token / (values["sm_rate"] * sizes["sms"])
    elif kernel == "low_latency_inside":
        rate = values["group_rate"] * sizes["num_experts"]
        passed = tokens * sizes["topk"] * token / rate
    link = sent / (values["bandwidth"] * sizes["bandwidth_bytes_per_s"])
    if "congestion" in values:
        slower = values["congestion"] * link / (link + values["congestion_s"])
        link = link * (1 + sizes["congested"] * slower)
    return (link**_NORM + passed**_NORM) ** (1 / _NORM)
