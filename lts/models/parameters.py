"""The trees of a decoder's weights and caches, and what stands at their leaves.

A decoder whose layers are all equal has them under "layers". Others have one entry per
segment of repeated layers, named by its first: "layers0", "layers3"; where the repeated
unit has several layers, each has its place in it, "0", "1", as one more level.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal

from lts.models.architecture import GroupedAttention, Layer, Segment
from lts.models.attention import grouped_weights
from lts.models.caches import Cache, cache_shapes
from lts.models.config import DecoderConfig
from lts.models.feed_forward import ffn_weights
from lts.models.latent import latent_weights
from lts.models.weights import NamedShape, Params, Weight, stacked

LayerForm = Literal["scan", "unrolled"]


def model_weights(config: DecoderConfig) -> dict[str, Weight]:
    """Arrays outside the layers."""
    d, vocab = config.hidden_size, config.vocab_size
    weights = {
        "embed": Weight(shape=(vocab, d), dims=("vocab", "hidden"), fan_in=d),
        "norm": Weight(shape=(d,), dims=("hidden",)),
    }
    if not config.tie_word_embeddings:
        dims = ("hidden", "out_vocab")
        weights["unembed"] = Weight(shape=(d, vocab), dims=dims, fan_in=d)
    return weights


def layer_weights(config: DecoderConfig, layer: Layer) -> dict[str, Weight]:
    """Arrays of one layer."""
    d = config.hidden_size
    norm = Weight(shape=(d,), dims=("hidden",))
    weights: dict[str, Weight] = {}
    if isinstance(layer.attention, GroupedAttention):
        weights |= {"norm_attention": norm, **grouped_weights(d, layer.attention)}
    elif layer.attention is not None:
        weights |= {"norm_attention": norm, **latent_weights(d, layer.attention)}
    if layer.ffn is not None:
        weights |= {"norm_mlp": norm, **ffn_weights(d, layer.ffn)}
    return weights


def count(config: DecoderConfig) -> int:
    """Number of parameters; scales of quantized weights are none."""
    outside = sum(prod(weight.shape) for weight in model_weights(config).values())
    own = {
        layer: sum(prod(w.shape) for w in layer_weights(config, layer).values())
        for layer in dict.fromkeys(config.layers)
    }
    return outside + sum(own[layer] for layer in config.layers)


def is_uniform(config: DecoderConfig) -> bool:
    """Whether all layers are equal."""
    return config.segments[0].repeats == config.num_hidden_layers


def segment_name(config: DecoderConfig, segment: Segment) -> str:
    """What a segment's parameters stand under."""
    return "layers" if is_uniform(config) else f"layers{segment.start}"


def build(
    config: DecoderConfig, form: LayerForm, make: Callable[[Weight], Any]
) -> Params:
    """The parameter tree with `make(weight)` at each leaf.

    In the scan form a layer's leaves have a leading dimension over the repeats of its
    segment; in the unrolled form there is a list of them.
    """
    outside = {name: make(weight) for name, weight in model_weights(config).items()}

    def parts(layer: Layer) -> dict[str, Weight]:
        return layer_weights(config, layer)

    return outside | _arranged(config, form, parts, make)


def build_cache(
    config: DecoderConfig,
    form: LayerForm,
    batch: int,
    length: int,
    make: Callable[[NamedShape], Any],
) -> Cache:
    """The cache tree with `make(shape)` at each leaf.

    As the parameters' tree, without layers that have no attention; of equal layers it
    is what would stand under "layers".
    """

    def parts(layer: Layer) -> dict[str, NamedShape]:
        return cache_shapes(layer.attention, batch, length)

    tree = _arranged(config, form, parts, make)
    return tree.get("layers", {}) if is_uniform(config) else tree


def _arranged(
    config: DecoderConfig,
    form: LayerForm,
    parts: Callable[[Layer], Mapping[str, Any]],
    make: Callable[[Any], Any],
) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for segment in config.segments:
        places: dict[str, Any] = {}
        for place, layer in enumerate(segment.unit):
            own, repeats = parts(layer), segment.repeats
            if own and form == "scan":
                places[str(place)] = {
                    name: make(stacked(array, repeats)) for name, array in own.items()
                }
            elif own:
                places[str(place)] = [
                    {name: make(array) for name, array in own.items()}
                    for _ in range(repeats)
                ]
        if places:
            one = len(segment.unit) == 1
            tree[segment_name(config, segment)] = places["0"] if one else places
    return tree


def by_place(segment: Segment, tree: Any) -> dict[str, Any]:
    """A segment's own tree with the place level, which units of one layer lack."""
    if tree is None:
        return {}
    return {"0": tree} if len(segment.unit) == 1 else tree
