"""Sets JAX up before any test uses it: 8 CPU devices, no silent rank promotion."""

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key() -> jax.Array:
    """A fixed random key; split it before use."""
    return jax.random.key(0)
