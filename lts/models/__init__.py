"""Reference decoders in plain JAX, built from config.json; they know of no search.

Names of sizes, as in shapes: d (hidden), f (MLP hidden), g (KV heads), q (query heads
per KV head), k (head size), b (batch), s (new tokens), t (cached positions). Heads are
never folded into one dimension, so that each can be sharded by itself.
"""

from lts.models.config import (
    DecoderConfig,
    config_from_dict,
    config_to_dict,
    kv_bytes_per_token,
    read_config,
)
from lts.models.decoder import Decoder
from lts.models.loading import load, names

__all__ = [
    "DecoderConfig",
    "Decoder",
    "config_from_dict",
    "config_to_dict",
    "kv_bytes_per_token",
    "load",
    "names",
    "read_config",
]
