"""Shardy's passes, in a process of its own: `python lts/shardy_worker.py`.

The only module that touches Shardy's Python bindings. A failed check in its passes ends
the process, so `lts.shardy` starts this one and talks to it: one JSON object per line
in, one per line out. It imports nothing of the package, so that it starts fast.

Two cautions. Passes change the module that they run on, so every request is parsed
anew. An operation does not keep its module alive: hold the `ir.Module` as long as any
of its operations is in use, or the process dies.
"""

import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax

try:
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import sdy

    MISSING = ""
except ImportError as error:  # another jaxlib; the parent says so in one line
    MISSING = str(error)

RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
RESHARDS = (
    "builtin.module("
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives))"
)
_COLLECTIVE = re.compile(r"sdy\.((?:all|reduce|collective)_\w+) ?(.*?) ?%", re.DOTALL)
_AXIS = re.compile(r'"([^"]+)"')
_MESH = "mesh"

Spec = list[list[str]]  # per dim, the mesh axes that shard it, major first


def operations(parent: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """All operations below `parent`, each before those inside it, and their depth."""
    for region in parent.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation, depth
                yield from operations(child.operation, depth + 1)


def parsed(stablehlo: str) -> Any:
    """The module of a text; composites become calls of what they stand for.

    Shardy has no rule for a composite, and XLA expands most of them, too.
    """
    module = ir.Module.parse(stablehlo)
    found = [op for op, _ in operations(module.operation)]
    for op in found:
        if op.name != "stablehlo.composite":
            continue
        call = ir.Operation.create(
            "func.call",
            results=[value.type for value in op.results],
            operands=list(op.operands),
            attributes={"callee": op.attributes["decomposition"]},
            ip=ir.InsertionPoint(op),
        )
        for old, new in zip(op.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
    return module


def main_function(module: Any) -> Any:
    """The function `main` of a module."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.sym_name.value == "main":
            return op
    raise ValueError("the program has no function main")


def _dim_factors(tensor: Any) -> list[list[int]]:
    dims = map(sdy.DimMappingAttr, sdy.TensorMappingAttr(tensor).dim_mappings)
    return [list(dim.factor_indices) for dim in dims]


def _rule(operation: Any) -> dict[str, Any] | None:
    """The sharding rule that the pass put on an operation, if any."""
    if "sdy.sharding_rule" not in operation.attributes:
        return None
    rule = sdy.OpShardingRuleAttr(operation.attributes["sdy.sharding_rule"])
    return {
        "operands": [_dim_factors(tensor) for tensor in rule.operand_mappings],
        "results": [_dim_factors(tensor) for tensor in rule.result_mappings],
        "sizes": list(rule.factor_sizes),
        "reduction": list(rule.reduction_factors),
        "need_replication": list(rule.need_replication_factors),
        "permutation": list(rule.permutation_factors),
    }


def rules(stablehlo: str) -> list[dict[str, Any]]:
    """Every operation of a program: name, values, how deep it stands, its rule."""
    module = parsed(stablehlo)
    passmanager.PassManager.parse(RULES).run(module.operation)
    count = itertools.count()
    numbers: dict[Any, int] = {}
    for argument in main_function(module).arguments:
        numbers[argument] = next(count)

    def number(value: Any) -> int:
        if value not in numbers:
            numbers[value] = next(count)
        return numbers[value]

    return [
        {
            "name": op.name,
            "operands": [number(value) for value in op.operands],
            "results": [number(value) for value in op.results],
            "depth": depth - 1,
            "rule": _rule(op),
        }
        for op, depth in operations(module.operation)
        if op.name != "func.func"
    ]


def _with_shardings(
    stablehlo: str, axis_sizes: dict[str, int], specs: Sequence[Spec | None]
) -> Any:
    """The program on a mesh, with shardings on arguments; None leaves one open."""
    module = parsed(stablehlo)
    axes = ", ".join(f'"{name}"={size}' for name, size in axis_sizes.items())
    mesh = ir.Operation.parse(f"sdy.mesh @{_MESH} = <[{axes}]>")
    ir.InsertionPoint.at_block_begin(module.body).insert(mesh)
    function = main_function(module)
    if len(specs) != len(function.arguments):
        raise ValueError(
            f"{len(specs)} specs for the {len(function.arguments)} arguments of main"
        )
    attributes = []
    for spec in specs:
        if spec is None:
            attributes.append(ir.DictAttr.get({}))
            continue
        dims = ", ".join(
            "{"
            + ", ".join([*(f'"{axis}"' for axis in dim), *([] if dim else ["?"])])
            + "}"
            for dim in spec
        )
        sharding = ir.Attribute.parse(f"#sdy.sharding<@{_MESH}, [{dims}]>")
        attributes.append(ir.DictAttr.get({"sdy.sharding": sharding}))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    return module


def _spec(sharding: Any) -> Spec:
    """Axes per dim; part of an axis is written `name:(before)size`."""
    spec = []
    for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        names = []
        for axis in map(sdy.AxisRefAttr, dim.axes):
            part = axis.sub_axis_info
            info = sdy.SubAxisInfoAttr(part) if part else None
            names.append(
                f"{axis.name}:({info.pre_size}){info.size}" if info else axis.name
            )
        spec.append(names)
    return spec


def _specs(function: Any, name: str, types: Sequence[Any]) -> list[Spec]:
    """Specs of the arguments or results of a function; open ones are unsharded."""
    attributes = function.attributes
    dicts = list(attributes[name]) if name in attributes else [None] * len(types)
    specs = []
    for entry, kind in zip(dicts, types, strict=True):
        if entry is not None and "sdy.sharding" in (found := ir.DictAttr(entry)):
            specs.append(_spec(sdy.TensorShardingAttr(found["sdy.sharding"])))
        else:
            specs.append([[] for _ in ir.RankedTensorType(kind).shape])
    return specs


def _axis_sizes(module: Any) -> dict[str, int]:
    """Axes of all meshes of a module."""
    sizes = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.attributes["mesh"])
            for axis in map(sdy.MeshAxisAttr, mesh.axes):
                sizes[axis.name] = axis.size
    return sizes


def _local_bytes(operation: Any, axis_sizes: dict[str, int]) -> int:
    """Bytes of a collective's result on one device, from its type and sharding."""
    array = ir.RankedTensorType(operation.results[0].type)
    found = re.findall(r"\d+", str(array.element_type))
    bits = max(8, int(found[0])) if found else 8  # i1 takes a byte
    if str(array.element_type).startswith("complex"):
        bits *= 2
    num_shards = 1
    sharding = sdy.TensorShardingAttr(operation.attributes["out_sharding"])
    for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        for axis in map(sdy.AxisRefAttr, dim.axes):
            part = axis.sub_axis_info
            size = sdy.SubAxisInfoAttr(part).size if part else axis_sizes[axis.name]
            num_shards *= size
    return math.prod(array.shape) * bits // 8 // num_shards


def propagate(
    stablehlo: str,
    axis_sizes: dict[str, int] | None = None,
    specs: Sequence[Spec | None] | None = None,
) -> dict[str, Any]:
    """Shardings of arguments and results after propagation, and the collectives."""
    if axis_sizes is None or specs is None:
        module = parsed(stablehlo)
    else:
        module = _with_shardings(stablehlo, axis_sizes, specs)
    passmanager.PassManager.parse(PROPAGATION).run(module.operation)
    function = main_function(module)
    answer: dict[str, Any] = {
        "arguments": _specs(function, "arg_attrs", function.type.inputs),
        "results": _specs(function, "res_attrs", function.type.results),
    }
    passmanager.PassManager.parse(RESHARDS).run(module.operation)
    sizes = _axis_sizes(module)
    answer["collectives"] = [
        {
            "kind": match[1],
            "axes": list(dict.fromkeys(_AXIS.findall(match[2]))),
            "nbytes": _local_bytes(op, sizes),
        }
        for op, _ in operations(module.operation)
        if op.name.startswith("sdy.") and (match := _COLLECTIVE.search(str(op)))
    ]
    return answer


TASKS = {"rules": rules, "propagate": propagate}


def answer_line(line: str) -> str:
    """The answer to one request, or the error that it met, as one line of JSON."""
    if MISSING:
        return json.dumps({"error": f"jaxlib has no Shardy bindings: {MISSING}"})
    request = json.loads(line)
    try:
        with make_ir_context(), ir.Location.unknown():
            return json.dumps({"answer": TASKS[request.pop("task")](**request)})
    except Exception as error:  # MLIR's own kinds, too: the parent raises it again
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    # What XLA prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps({"jax": jax.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(answer_line(line), file=answers, flush=True)


if __name__ == "__main__":
    main()
