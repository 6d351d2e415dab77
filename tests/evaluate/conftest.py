"""Small problems with their tables, shared by the tests of the evaluators."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.hardware import Cluster
from lts.models import Decoder
from lts.prepare import Prepared, prepare_function, prepare_problem
from lts.problem import zoo_problem
from lts.space import Space
from lts.workload import Workload
from tests.tiny import PRICED as TINY


def _random_picks(space: Space, count: int, seed: int = 0) -> np.ndarray:
    """`[genes, candidates]`; most overrides inherit, so that layouts make sense."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, space.cardinalities[:, None], (space.num_genes, count))
    plain = rng.random(picks.shape) < rng.choice([0.5, 0.9, 1.0], count)
    plain[: space.first_override] = False
    return np.where(plain, 0, picks).astype(np.int32)


@pytest.fixture(scope="session")
def random_picks() -> Callable[..., np.ndarray]:
    """Draws candidates of a space."""
    return _random_picks


@pytest.fixture(scope="session")
def pricing() -> ModuleType:
    """The slow pricing beside this file."""
    path = Path(__file__).with_name("pricing.py")
    found = importlib.util.spec_from_file_location("lts_test_pricing", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def _served(cluster: str, **fields: Any) -> Prepared:
    workload = Workload(**fields)
    problem = zoo_problem(Decoder(config=TINY), workload)
    return prepare_problem(problem, workload, Cluster.parse(cluster))


@pytest.fixture(scope="session")
def served() -> Prepared:
    """A decoder on two nodes, its batch to be found, within limits."""
    return _served("h100:2x4", input_len=256, output_len=64, ttft_ms=40, tpot_ms=4)


@pytest.fixture(scope="session")
def given() -> Prepared:
    """The same with its concurrency given."""
    return _served("h100:2x4", input_len=256, output_len=64, concurrency=24)


@pytest.fixture(scope="session")
def prefilled() -> Prepared:
    """Prefill alone."""
    return _served("h100:1x8", input_len=256)


def _mlp(params: Any, x: jax.Array) -> jax.Array:
    x = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True))
    for layer in params:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return x


@pytest.fixture(scope="session")
def function() -> Prepared:
    """A plain function."""
    up = jax.ShapeDtypeStruct((64, 256), "bfloat16")
    down = jax.ShapeDtypeStruct((256, 64), "bfloat16")
    args = [{"up": up, "down": down}] * 2, jax.ShapeDtypeStruct((48, 64), "bfloat16")
    return prepare_function(_mlp, args, {}, Cluster.parse("h100:2x4"))
