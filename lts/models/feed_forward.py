"""Feed-forward parts of a layer: dense, and experts with a shared one beside them."""

import jax
import jax.numpy as jnp
from jax import lax

from lts.models.architecture import DenseFfn, ExpertFfn
from lts.models.arrays import float32_product, product
from lts.models.experts import expert_ffn
from lts.models.routing import route
from lts.models.weights import Params, Weight, matrix, vector


def ffn_weights(hidden_size: int, ffn: DenseFfn | ExpertFfn) -> dict[str, Weight]:
    """Arrays of one layer's feed-forward part, without the norm before it."""
    if isinstance(ffn, DenseFfn):
        sizes = {"hidden": hidden_size, "ffn": ffn.size}
        return _projections(sizes, "ffn", gated=ffn.gated)
    sizes = {
        "hidden": hidden_size,
        "routed": ffn.num_experts,
        "experts": ffn.num_experts,
        "expert_ffn": ffn.size,
        "shared_ffn": ffn.shared_size,
    }
    weights = {"router": vector(sizes, "hidden routed", hidden_size)}
    if ffn.routing.biased:
        weights["router_bias"] = vector(sizes, "routed", hidden_size)
    own = _projections(sizes, "expert_ffn", gated=ffn.gated, each="experts")
    weights |= {f"expert_{name}": weight for name, weight in own.items()}
    if ffn.shared_size:
        own = _projections(sizes, "shared_ffn", gated=ffn.gated)
        weights |= {f"shared_{name}": weight for name, weight in own.items()}
    if ffn.shared_gated:
        weights["shared_router"] = vector(sizes, "hidden", hidden_size)
    return weights


def _projections(
    sizes: dict[str, int], inner: str, *, gated: bool, each: str = ""
) -> dict[str, Weight]:
    gate = {"gate": matrix(sizes, "hidden", inner, each=each)} if gated else {}
    return gate | {
        "up": matrix(sizes, "hidden", inner, each=each),
        "down": matrix(sizes, inner, "hidden", each=each),
    }


def feed_forward(ffn: DenseFfn | ExpertFfn, weights: Params, x: jax.Array) -> jax.Array:
    """What the part adds to the residual stream; `x` and result [b, s, d]."""
    if isinstance(ffn, DenseFfn):
        with jax.named_scope("mlp"):
            return _dense(weights, x)
    with jax.named_scope("router"):
        router = weights["router"].astype(x.dtype)
        logits = float32_product("bsd,de->bse", x, router)
        weight, expert = route(ffn, logits, weights.get("router_bias"))
        weight = weight.astype(x.dtype)
    entering = x
    if ffn.routing.on_input:  # one expert per token: [b, s, 1]
        entering, weight = x * weight, jnp.ones_like(weight)
    with jax.named_scope("experts"):
        names = ("expert_gate", "expert_up", "expert_down")
        matrices = (weights.get(name) for name in names)
        out = expert_ffn(entering, weight, expert, *matrices)
    return out + _shared(ffn, weights, x) if ffn.shared_size else out


def _dense(weights: Params, x: jax.Array, prefix: str = "") -> jax.Array:
    """Gated silu where there is a gate, else relu."""
    gate = weights.get(f"{prefix}gate")
    if gate is not None:
        with jax.named_scope("gate"):
            gate = product("bsd,df->bsf", x, gate)
    with jax.named_scope("up"):
        up = product("bsd,df->bsf", x, weights[f"{prefix}up"])
    with jax.named_scope("down"):
        inner = jax.nn.relu(up) if gate is None else jax.nn.silu(gate) * up
        return product("bsf,fd->bsd", inner, weights[f"{prefix}down"])


def _shared(ffn: ExpertFfn, weights: Params, x: jax.Array) -> jax.Array:
    """The shared expert's output [b, s, d]."""
    with jax.named_scope("shared"):
        out = _dense(weights, x, "shared_")
        if ffn.shared_gated:
            with jax.named_scope("router"):
                share = product("bsd,d->bs", x, weights["shared_router"])
            out = out * lax.expand_dims(jax.nn.sigmoid(share), (2,))
    return out
