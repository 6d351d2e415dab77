"""Rules of decision ops, one per primitive, by kind.

A key is a primitive, or `primitive:name` where a primitive stands for many things
(kernels, foreign calls).
"""

from lts.graph import EXPERTS
from lts.tracing.expert_rules import expert_ffn, ragged_dot
from lts.tracing.op_rule import Rule
from lts.tracing.rules.contraction import CONTRACTIONS
from lts.tracing.rules.indexing import INDEXING, SCATTERS
from lts.tracing.rules.linear_algebra import LINEAR_ALGEBRA
from lts.tracing.rules.mixing import CUMULATIVE, FOLDS, SORTS, TRANSFORMS
from lts.tracing.rules.opaque import OPAQUE_OPS, POINTWISE
from lts.tracing.rules.randomness import RANDOMNESS
from lts.tracing.rules.windows import CONVOLUTIONS, WINDOWS

__all__ = [
    "BUILT_IN",
    "CALLS",
    "CONVOLUTIONS",
    "FOLDS",
    "KINDS",
    "LINEAR_ALGEBRA",
    "SCATTERS",
    "SORTS",
    "TRANSFORMS",
]

CALLS: dict[str, Rule] = {EXPERTS: expert_ffn}
"""Rules of functions that are one op when called under `jax.jit`, by name."""

KINDS: dict[str, dict[str, Rule]] = {
    "contraction": {**CONTRACTIONS, "ragged_dot_general": ragged_dot},
    "convolution": CONVOLUTIONS,
    "look-up or update": INDEXING,
    "sort": SORTS,
    "cumulative": CUMULATIVE,
    "transform": TRANSFORMS,
    "reduction of one's own": FOLDS,
    "window": WINDOWS,
    "linear algebra": LINEAR_ALGEBRA,
    "randomness": RANDOMNESS,
    "pass-through": POINTWISE,
    "opaque": OPAQUE_OPS,
    "experts": CALLS,
}
"""Rules by the kind that docs/primitives.md gives them."""

BUILT_IN: dict[str, Rule] = {
    key: rule for rules in KINDS.values() for key, rule in rules.items()
}
