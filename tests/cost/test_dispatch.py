"""Closed forms of expert dispatch against counts of random routing and compiled HLO."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from lts.cost.dispatch import all_to_all_bytes, expert_rows, experts_touched, rounds
from lts.hlo import list_collectives
from lts.models.capacity import destination_rows, even_rows, expert_capacity
from lts.models.dispatch import ExpertLayout, sharded_expert_ffn
from lts.models.experts import buckets, expert_ffn
from tests.after_spmd import compiled_with_dump


def random_routing(
    seed: int, tokens: tuple[int, ...], top_k: int, experts: int
) -> np.ndarray:
    """k different experts of each token, drawn evenly; `[*tokens, k]`."""
    order = np.random.default_rng(seed).random((*tokens, experts))
    return order.argpartition(top_k - 1, axis=-1)[..., :top_k]


def rows_by_destination(expert: np.ndarray, held: int, ways: int) -> np.ndarray:
    """Tokens of each sender with an expert on each device; `[senders, ways]`."""
    owner = expert // held  # [senders, tokens, k]
    return np.stack([(owner == w).any(-1).sum(-1) for w in range(ways)], axis=-1)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ways"),
    [(2048, 8, 256, 64), (512, 8, 128, 8), (4096, 1, 2048, 64), (1024, 2, 8, 8)],
)
def test_rows_are_sent_once_to_each_device_that_holds_an_expert(
    tokens: int, top_k: int, experts: int, ways: int
) -> None:
    expert = random_routing(0, (4, tokens), top_k, experts)
    counted = rows_by_destination(expert, experts // ways, ways)
    # Experts of a token are distinct, the closed form draws them one by one: 8 experts
    # on 8 devices of one expert each miss none, where it leaves some out.
    share = 1.0 if top_k == 1 else (1 - 1 / experts * ways / ways)
    assert counted.mean() == pytest.approx(even_rows(tokens, top_k, ways), rel=0.1)
    assert counted.mean() >= even_rows(tokens, top_k, ways) * share * 0.99
    assert counted.max() <= destination_rows(tokens, top_k, ways)
