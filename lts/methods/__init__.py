"""Search methods, one per file, behind `init`, `ask` and `tell`.

`METHODS` names them all: each entry makes the method for an evaluator and a budget.
"""

from collections.abc import Callable, Mapping

from lts.evaluate.tables import TableEvaluator
from lts.methods.annealing import annealing
from lts.methods.base import Found, Method, run
from lts.methods.learn_to_shard import learn_to_shard
from lts.methods.megatron import megatron
from lts.methods.megatron_grid import megatron_grid
from lts.methods.random_search import random_search

__all__ = ["METHODS", "Found", "Method", "run"]

METHODS: Mapping[str, Callable[[TableEvaluator, int], Method]] = {
    "random": random_search,
    "annealing": annealing,
    "megatron": megatron,
    "megatron_grid": megatron_grid,
    "learn_to_shard": learn_to_shard,
}
