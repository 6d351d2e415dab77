"""HLO right after SPMD partitioning, of a lowered step, compiled in this process."""

import tempfile
from pathlib import Path


def after_spmd(lowered) -> str:
    """The text of the pass's dump."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "^spmd-partitioning",
        }
        lowered.compile(compiler_options=options)
        (dump,) = Path(folder).glob("*after_spmd-partitioning*.txt")
        return dump.read_text()
