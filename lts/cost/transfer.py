"""KV transfer: how long the caches of prompts take from prefill to decode instances.

The caches of one call travel in point-to-point pieces, each from a GPU that holds it to
one that needs it, so it does not matter how the layouts of the two ends differ:

    t_transfer = latency + max(sent, received) / bandwidth        bytes per GPU

Every byte is sent once: GPUs with the same part of a cache share the sending. A GPU
receives all that its own layout keeps. Two instances that fit in one node together are
placed so; else the link is that between nodes.
"""

from dataclasses import dataclass

import numpy as np

from lts.cost.tables import CostTables
from lts.hardware import Cluster, Link


@dataclass(frozen=True, eq=False, kw_only=True)
class Receiver:
    """What a GPU of an instance receives.

    Attributes:
      nbytes: of one prompt on a GPU that keeps a part of it; `[caches]`.
      ways: groups of GPUs over which prompts are spread; `[caches]`.
    """

    nbytes: np.ndarray
    ways: np.ndarray


def link_between(prefill_gpus: int, decode_gpus: int, cluster: Cluster) -> Link:
    """The link from an instance of prefill to one of decode, by their GPUs."""
    together = prefill_gpus + decode_gpus <= cluster.gpus_per_node
    return cluster.intra if together else cluster.inter


def transfer_s(
    prompts: np.ndarray,
    prompt_bytes: float,
    sending_gpus: int,
    receiver: Receiver | None,
    link: Link,
) -> np.ndarray:
    """Seconds that the caches of one call take.

    Args:
      prompts: of a call; `[batches]`.
      prompt_bytes: as `cache_bytes` of prefill.
      sending_gpus: of the prefill instance, all stages.
      receiver: None counts the sending only: no receiver makes it faster.

    Returns:
      `[batches]`.
    """
    busiest = prompts * (prompt_bytes / sending_gpus)
    if receiver is not None:
        rounds = np.ceil(prompts[:, None] / receiver.ways)
        busiest = np.maximum(busiest, (rounds * receiver.nbytes).sum(-1))
    latency_s = link.latency_s + link.hop_latency_s
    return latency_s + busiest / link.bandwidth_bytes_per_s


def cache_bytes(tables: CostTables) -> float:
    """Bytes of the whole cache of one sequence, all layers, unsharded."""
    return float(sum(table[0, 0] for table in tables.cache_bytes.values()))


def receiver_of(tables: CostTables, picks: np.ndarray, share: float) -> Receiver:
    """What a GPU of a decode instance receives of a prompt.

    Args:
      picks: of the instance; host `[genes]`.
      share: of a request's cache that its prompt fills.
    """
    space, number = tables.space, int(picks[0])
    degrees, choices = space.degrees[number], space.choices(picks)
    nbytes, ways = [], []
    for variable, table in tables.cache_bytes.items():
        states = space.choice_states(variable)[choices[variable]]
        factors = space.variables[variable].factors
        spread = 1
        for axis, state in zip(degrees.axes, states.tolist(), strict=True):
            if state and factors[state - 1].batched:
                spread *= axis.size
        kept = float(table[number, choices[variable]]) / degrees.stages
        nbytes.append(kept * spread * share)
        ways.append(spread)
    return Receiver(nbytes=np.array(nbytes), ways=np.array(ways))
