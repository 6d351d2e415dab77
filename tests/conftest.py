"""Sets JAX up before any test uses it: 8 CPU devices, no silent rank promotion.

Programs that XLA compiled once in a run are taken from a cache after that, by all
processes of the run: many tests price plans of one model, or run one step twice.
"""

import atexit
import os
import shutil
import tempfile

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs here run once or twice: compiling them takes longer than running them.
jax.config.update("jax_disable_most_optimizations", True)

if "LTS_TESTS_CACHE" not in os.environ:  # else this is a worker of pytest-xdist
    os.environ["LTS_TESTS_CACHE"] = tempfile.mkdtemp(prefix="lts-tests-")
    atexit.register(shutil.rmtree, os.environ["LTS_TESTS_CACHE"], ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", os.environ["LTS_TESTS_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def key() -> jax.Array:
    """A fixed random key; split it before use."""
    return jax.random.key(0)
