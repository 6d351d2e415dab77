"""Tiny decoders that several tests share."""

import functools

import lts
from lts.models import Decoder, dense_decoder, read_config

BATCH, PROMPT, STEPS = 16, 16, 4
BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
CONFIGS = {
    "dense": BASE,
    "tied": {**BASE, "tie_word_embeddings": True},
    "two KV heads": {**BASE, "num_key_value_heads": 2},
}
PRICED = dense_decoder(
    name="tiny",
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=4096,
)
"""Large enough that prices differ by layout; never run."""

WORKLOAD = lts.Workload(PROMPT, 8, concurrency=BATCH)
CLUSTER = lts.Cluster.parse("h100:1x8")


def model_of(name: str, layers: str = "scan") -> Decoder:
    """The tiny decoder of that name; `layers` as in `lts.models.load`."""
    return Decoder(config=read_config(CONFIGS[name], name), layers=layers)


@functools.cache
def priced(name: str, **degrees: int) -> lts.Plan:
    """The plan of a tiny decoder with degrees by hand."""
    model = model_of(name)
    return lts.price(model, cluster=CLUSTER, workload=WORKLOAD, degrees=degrees)
