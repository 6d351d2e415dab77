"""The problems that the tests of methods share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lts.evaluate.tables import TableEvaluator
from lts.hardware import Cluster
from lts.models import load
from lts.workload import Workload
from tests.methods.problems import plain_evaluator, serving_evaluator, small_decoder


@pytest.fixture(scope="session")
def decoder() -> TableEvaluator:
    """A small decoder on four GPUs of one node; few random candidates are feasible."""
    return small_decoder()


@pytest.fixture(scope="session")
def llama_70b() -> TableEvaluator:
    """The problem of the README: Llama 3.1 70B on two nodes of eight H100s."""
    workload = Workload(input_len=2048, output_len=256, ttft_ms=1000, tpot_ms=50)
    model = load("llama-3.1-70b")
    return serving_evaluator(model, Cluster.parse("h100:2x8"), workload)


@pytest.fixture(scope="session")
def mlp() -> TableEvaluator:
    """Two products of a plain function on eight GPUs of two nodes."""
    shapes = [(256, 1024), (1024, 4096), (4096, 1024)]
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return plain_evaluator(
        lambda x, up, down: jax.nn.relu(x @ up) @ down, args, Cluster.parse("h100:2x4")
    )


@pytest.fixture(scope="session")
def product() -> TableEvaluator:
    """One product on two GPUs: few enough candidates to list."""
    shapes = [(4096, 8192), (8192, 4096)]
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return plain_evaluator(lambda x, w: x @ w, args, Cluster.parse("h100:1x2"))


@pytest.fixture(scope="session")
def every_candidate(product: TableEvaluator) -> np.ndarray:
    """All candidates of `product`, int32 `[genes, candidates]`."""
    sizes = product.space.cardinalities
    return np.indices(tuple(sizes)).reshape(len(sizes), -1).astype(np.int32)
