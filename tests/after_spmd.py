"""HLO right after SPMD partitioning, of a lowered step, compiled in this process."""

import tempfile
from pathlib import Path

import jax


def after_spmd(lowered) -> str:
    """The text of the pass's dump."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "^spmd-partitioning",
        }
        # what comes from the cache of the test run was not compiled, and dumps nothing
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            lowered.compile(compiler_options=options)
        finally:
            jax.config.update("jax_enable_compilation_cache", True)
        (dump,) = Path(folder).glob("*after_spmd-partitioning*.txt")
        return dump.read_text()
