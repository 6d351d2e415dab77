"""Linear recurrences from their published equations.

`mamba`: the selective state space model of arXiv 2312.00752 (equations 2, algorithm 2,
figure 3). `rg_lru`: the gated linear recurrent unit of arXiv 2402.19427 (section 2.4).
"""

import jax
import jax.numpy as jnp

from tests.programs.program import Program, shape

BATCH, LENGTH, WINDOW = 8, 16, 4


def combine(left, right):
    """h -> a h + b after h -> a' h + b': (a a', a b' + b)."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def recurrence(decay: jax.Array, drive: jax.Array, scan: str) -> jax.Array:
    """All h_t = decay_t h_{t-1} + drive_t with h_0 = 0; time is dim 1."""
    if scan == "associative":
        return jax.lax.associative_scan(combine, (decay, drive), axis=1)[1]

    def step(h, inputs):
        h = inputs[0] * h + inputs[1]
        return h, h

    by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (decay, drive))
    _, states = jax.lax.scan(step, jnp.zeros_like(drive[:, 0]), by_time)
    return jnp.moveaxis(states, 0, 1)


def causal_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Depthwise over time: x [batch, length, inner], kernel [WINDOW, 1, inner]."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding=[(WINDOW - 1, 0)],
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=x.shape[-1],
    )


def mamba_block(params, x, *, scan: str):
    """x [batch, length, features] -> the same shape, with a residual."""
    rank, states = params["step"].shape[0], params["decay_log"].shape[1]
    u, gate = jnp.split(x @ params["in"], 2, axis=-1)  # [batch, length, inner] each
    u = jax.nn.silu(causal_conv(u, params["conv"]) + params["conv_bias"][None, None])
    low, b, c = jnp.split(u @ params["select"], (rank, rank + states), axis=-1)
    step = low @ params["step"] + params["step_bias"][None, None]
    step = jax.nn.softplus(step)[..., None]  # [batch, length, inner, 1]
    decay = jnp.exp(step * -jnp.exp(params["decay_log"])[None, None])
    drive = step * b[:, :, None, :] * u[..., None]
    h = recurrence(decay, drive, scan)  # [batch, length, inner, states]
    y = jnp.einsum("blis,bls->bli", h, c) + u * params["skip"][None, None]
    return x + (y * jax.nn.silu(gate)) @ params["out"]


def mamba(scan: str, features: int = 16, states: int = 4, layers: int = 2) -> Program:
    """Blocks in a row; `scan` is "associative" or "sequential"."""
    inner, rank = 2 * features, max(features // 16, 1)
    block = {
        "in": shape(features, 2 * inner),
        "conv": shape(WINDOW, 1, inner),
        "conv_bias": shape(inner),
        "select": shape(inner, rank + 2 * states),
        "step": shape(rank, inner),
        "step_bias": shape(inner),
        "decay_log": shape(inner, states),
        "skip": shape(inner),
        "out": shape(inner, features),
    }

    def forward(params, x):
        for block in params:
            x = mamba_block(block, x, scan=scan)
        return x

    args = [block] * layers, shape(BATCH, LENGTH, features)
    return Program(function=forward, args=args)


def rg_lru(scan: str, features: int = 16) -> Program:
    """The unit alone: its two gates are learnt maps of the input, its decay is not."""
    params = {
        "recurrence_gate": shape(features, features),
        "input_gate": shape(features, features),
        "decay": shape(features),
    }

    def forward(params, x):
        recurrence_gate = jax.nn.sigmoid(x @ params["recurrence_gate"])
        input_gate = jax.nn.sigmoid(x @ params["input_gate"])
        log_decay = (
            -8.0 * recurrence_gate * jax.nn.softplus(params["decay"])[None, None]
        )
        scale = jnp.sqrt(1.0 - jnp.exp(2.0 * log_decay))
        return recurrence(jnp.exp(log_decay), scale * input_gate * x, scan)

    return Program(function=forward, args=(params, shape(BATCH, LENGTH, features)))
