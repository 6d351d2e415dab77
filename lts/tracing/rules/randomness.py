"""Rules of random numbers: keys pass through, what one key gives is whole.

Keys are mostly single: then every device draws all numbers and no rule is asked.
"""

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule, leading, pointwise, replicated


def per_key(eq: Equation) -> OpRule:
    """Dims of the keys are batch; those behind them belong to one key."""
    return leading(eq, len(eq.ins[0].shape))


def wrapped(eq: Equation) -> OpRule:
    """Key data to keys: all but the last dim, the words of a key."""
    return leading(eq, len(eq.outs[0].shape))


RANDOMNESS: dict[str, Rule] = {
    **dict.fromkeys("random_seed random_clone threefry2x32".split(), pointwise),
    "random_fold_in": pointwise,
    **dict.fromkeys("random_bits random_split random_unwrap".split(), per_key),
    "random_gamma": per_key,
    "random_wrap": wrapped,
    "rng_bit_generator": replicated,
    "rng_uniform": replicated,
}
