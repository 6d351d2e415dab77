"""Reference decoders in plain JAX, built from config.json; they know of no search.

Names of sizes, as in shapes: d (hidden), f (MLP hidden), g (KV heads), q (query heads
per KV head), h (heads), k (head size; n unrotated, v of values), r (rank of a latent or
of queries), e (experts), b (batch), s (new tokens), t (cached positions). Heads are
never folded into one dimension, so that each can be sharded by itself.
"""

from lts.models.config import (
    DecoderConfig,
    cache_bytes,
    dense_decoder,
    kv_bytes_per_token,
    published_dtype,
)
from lts.models.decoder import Decoder
from lts.models.loading import load, names
from lts.models.reading import read_config
from lts.models.records import config_from_dict, config_to_dict
from lts.models.totals import active_params

__all__ = [
    "DecoderConfig",
    "Decoder",
    "active_params",
    "cache_bytes",
    "config_from_dict",
    "config_to_dict",
    "dense_decoder",
    "kv_bytes_per_token",
    "load",
    "names",
    "published_dtype",
    "read_config",
]
