"""Rotary embedding as config.json files describe it.

Older files have `rope_theta` and `rope_scaling` apart, newer ones both in
`rope_parameters`.
"""

from collections.abc import Mapping
from typing import Any

from lts.models.architecture import Rope
from lts.models.checks import check_number
from lts.models.fields import Fields
from lts.models.rope import LinearRope, Llama3Rope, RopeScaling, YarnRope, yarn_mscale

# What an object of any kind may hold beside its kind's own numbers. With text alone the
# three positions of `mrope` are one, so its sections are without effect.
_COMMON = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
    "finetuned",
}
_OWN = {
    "default": set[str](),
    "mrope": set[str](),
    "linear": {"factor"},
    "llama3": set(Llama3Rope.__dataclass_fields__),
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
    },
}


def read_rope(
    fields: Fields,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    partial: float | None = None,
) -> Rope:
    """The rotary embedding of heads of `head_dim` elements.

    Args:
      fields: of the text model.
      head_dim: size of a head.
      theta: base where the file is silent.
      partial: share of a head that is turned where the file is silent; None for a
        family that always turns all.

    Raises:
      ValueError: in one line, for a missing or bad number, or a kind of scaling that is
        not one of default, linear, llama3 and yarn.
    """
    scaling = _scaling(fields)
    share = _stated(fields, scaling, "partial_rotary_factor", partial or 1.0)
    if partial is None and share != 1:
        raise fields.fault(
            f"partial rotary embedding (partial_rotary_factor: {share}) is not "
            f"supported in this model_type"
        )
    size = int(round(head_dim * share, 6))
    rope = Rope(
        size=size,
        theta=_stated(fields, scaling, "rope_theta", theta),
        scaling=_read_scaling(fields, scaling, latent=False),
    )
    if size < head_dim and rope.attention_scale != 1.0:
        raise fields.fault(
            "yarn scaling of a partial rotary embedding is not supported"
        )
    return rope


def read_latent_rope(fields: Fields, size: int) -> Rope:
    """The rotary embedding of the `size` elements that latent attention turns."""
    scaling = _scaling(fields)
    return Rope(
        size=size,
        theta=_stated(fields, scaling, "rope_theta", 10_000.0),
        scaling=_read_scaling(fields, scaling, latent=True),
    )


def _scaling(fields: Fields) -> Mapping[str, Any]:
    older, newer = fields.object("rope_scaling"), fields.object("rope_parameters")
    found = {**newer, **older}
    nested = [name for name, value in found.items() if isinstance(value, Mapping)]
    if nested:
        raise fields.fault(
            f"rope scaling per layer type ({', '.join(nested)}) is not supported"
        )
    return {name: value for name, value in found.items() if value is not None}


def _stated(
    fields: Fields, scaling: Mapping[str, Any], field: str, default: float
) -> float:
    """A number that stands in the object or beside it."""
    value = scaling.get(field, fields.get(field, default))
    fields.ignore(field)
    check_number(value, field, fields.name)
    return value


def _read_scaling(
    fields: Fields, scaling: Mapping[str, Any], *, latent: bool
) -> RopeScaling | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in _OWN:
        raise fields.fault(
            f"rope scaling {kind!r} is not supported; have {', '.join(_OWN)}"
        )
    unknown = sorted(set(scaling) - _COMMON - _OWN[kind])
    if unknown:
        raise fields.fault(
            f"rope scaling {kind!r} has a field that is not supported: "
            f"{', '.join(unknown)}"
        )
    if kind == "linear":
        return LinearRope(factor=_positive(fields, scaling, "factor"))
    if kind == "llama3":
        return _llama3(fields, scaling)
    return _yarn(fields, scaling, latent=latent) if kind == "yarn" else None


def _llama3(fields: Fields, scaling: Mapping[str, Any]) -> Llama3Rope:
    names = Llama3Rope.__dataclass_fields__
    rope = Llama3Rope(**{name: _positive(fields, scaling, name) for name in names})
    if rope.high_freq_factor < rope.low_freq_factor:
        raise fields.fault(
            f"rope scaling: high_freq_factor {rope.high_freq_factor} must not be below "
            f"low_freq_factor {rope.low_freq_factor}"
        )
    return rope


def _yarn(fields: Fields, scaling: Mapping[str, Any], *, latent: bool) -> YarnRope:
    """YaRN, with what its factor does to queries and keys as a scale of the scores.

    Turned parts of queries and keys grow by mscale / mscale_all_dim (or an explicit
    `attention_factor`). Grouped attention turns all of a head, so scores grow by the
    square. Latent attention turns a part, so there the growth must be one; and its
    scores are scaled by the square of mscale_all_dim's growth.

    Source: transformers `modeling_rope_utils.py`; DeepSeek-V3 `modeling_deepseek.py`.
    """
    factor = _positive(fields, scaling, "factor")
    mscale = scaling.get("mscale", 0)
    mscale_all_dim = scaling.get("mscale_all_dim", 0)
    for field, value in (("mscale", mscale), ("mscale_all_dim", mscale_all_dim)):
        if value:
            check_number(value, f"rope scaling: {field}", fields.name)
    if "attention_factor" in scaling:
        growth = _positive(fields, scaling, "attention_factor")
    elif mscale and mscale_all_dim:
        growth = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    else:
        growth = yarn_mscale(factor)
    if latent and growth != 1.0:
        raise fields.fault(
            f"yarn scaling with mscale {mscale} and mscale_all_dim {mscale_all_dim} is "
            f"not supported in latent attention: they must be equal"
        )
    scale = yarn_mscale(factor, mscale_all_dim) if latent else growth
    context = "original_max_position_embeddings"
    if context not in scaling:
        scaling = {**scaling, context: fields.size("max_position_embeddings")}
    return YarnRope(
        factor=factor,
        original_max_position_embeddings=_positive(fields, scaling, context),
        beta_fast=_positive(fields, {"beta_fast": 32, **scaling}, "beta_fast"),
        beta_slow=_positive(fields, {"beta_slow": 1, **scaling}, "beta_slow"),
        attention_scale=scale**2,
    )


def _positive(fields: Fields, scaling: Mapping[str, Any], name: str) -> float:
    if name not in scaling:
        raise fields.fault(f"rope scaling: field '{name}' is missing")
    check_number(scaling[name], f"rope scaling: {name}", fields.name)
    return float(scaling[name])
