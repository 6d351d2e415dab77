"""Compile a lowered step in this process, and keep the HLO after SPMD partitioning."""

import tempfile
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def compiled_with_dump(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, str]:
    """The compiled step, and the text right after SPMD partitioning.

    Not from the cache of the test run: what was not compiled dumps nothing.
    """
    cache = jax.config.jax_compilation_cache_dir
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, str | bool] = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "^spmd-partitioning",
        }
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
        try:
            compiled = lowered.compile(compiler_options=options)
        finally:
            jax.config.update("jax_compilation_cache_dir", cache)
            compilation_cache.reset_cache()
        (dump,) = Path(folder).glob("*after_spmd-partitioning*.txt")
        return compiled, dump.read_text()
