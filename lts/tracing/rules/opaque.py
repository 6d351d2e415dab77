"""Rules of ops that nobody can look into: replicated, at a price that shows.

What they do is known to their author alone, who can say it with `lts.register_rule`.
"""

from typing import Any

from lts.tracing.flatten import Equation
from lts.tracing.notation import rule_from_notation
from lts.tracing.op_rule import OpRule, Rule, pointwise, replicated


def name_of(primitive: str, params: Any) -> str:
    """The name of what an opaque equation calls: a kernel, a target; or ``."""
    if "_prim" in params:
        return type(params["_prim"]).__name__
    found = params.get("target_name") or params.get("name")
    return str(found) if found else ""


def opaque(eq: Equation) -> OpRule:
    """Every array whole, with a note that says so."""
    rule, name = replicated(eq), name_of(eq.primitive, eq.params)
    key = f"{eq.primitive}:{name}" if name else eq.primitive
    local = ", local=..." if eq.primitive == "pallas_call" else ""
    rule.note = (
        f"{key} at {eq.source or 'an unknown line'}: opaque, every device runs all of "
        "it on whole arrays; say what it does with "
        f"lts.register_rule('{key}', '(i, k) -> (i, k)'{local})"
    )
    return rule


def custom_partitioning(eq: Equation) -> OpRule:
    """A function with a partitioner of its own, by the Shardy rule it came with."""
    text = stated_rule(eq.params.get("sharding_rule"))
    return rule_from_notation(text)(eq) if text else opaque(eq)


def stated_rule(found: Any) -> str:
    """The rule of a `custom_partitioning` in notation; `` if it has none to read."""
    if not all(hasattr(found, name) for name in ("operand_mappings", "factor_sizes")):
        return ""

    def dim(names: Any) -> str:
        if not isinstance(names, str):
            return f"({' '.join(names)})"
        return "..." if names.startswith("…") else names

    def side(arrays: Any) -> str:
        return ", ".join(" ".join(map(dim, array)) for array in arrays)

    lists = {"reduction": found.reduction_factors}
    lists["need_replication"] = found.need_replication_factors
    lists["permutation"] = found.permutation_factors
    sizes = ", ".join(f"{name}={size}" for name, size in found.factor_sizes.items())
    parts = [side(found.operand_mappings), "->", side(found.result_mappings)]
    parts += [f"{{{sizes}}}"] if sizes else []
    parts += [f"{kind}={{{', '.join(names)}}}" for kind, names in lists.items()]
    return " ".join(parts)


OPAQUE_OPS: dict[str, Rule] = {
    **dict.fromkeys(
        """call_exported call_hi_primitive custom_call custom_linear_solve
        debug_callback debug_print dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd_wrapper ffi_call io_callback pallas_call
        pure_callback tpu_custom_call""".split(),
        opaque,
    ),
    "custom_partitioning": custom_partitioning,
}
POINTWISE: dict[str, Rule] = {
    "call_hi_primitive:Frexp": pointwise,
    "call_hi_primitive:Ldexp": pointwise,
    "dce_sink": pointwise,
}
