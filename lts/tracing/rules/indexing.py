"""Rules of look-ups and of updates at indices."""

from lts.tracing.flatten import Equation
from lts.tracing.op_rule import OpRule, Rule


def gather(eq: Equation) -> OpRule:
    """A look-up: collapsed and fully sliced dims may be sharded, others stay whole.

    Sharding an indexed dim that is collapsed leaves a partial sum, since every device
    looks up what it holds and adds zero elsewhere.
    """
    numbers, sizes = eq.params["dimension_numbers"], eq.params["slice_sizes"]
    operand, indices = eq.ins[0].shape, eq.ins[1].shape
    out_rank = len(eq.outs[0].shape)
    rule = OpRule()
    index_dims: list[int | None] = [rule.add(n) for n in indices[:-1]]
    batching = dict(
        zip(
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            strict=True,
        )
    )
    dims: list[int | None] = []
    window: list[int | None] = []
    for dim, (extent, size) in enumerate(zip(operand, sizes, strict=True)):
        if dim in batching:
            dims.append(index_dims[batching[dim]])
            continue
        collapsed = dim in numbers.collapsed_slice_dims
        whole = size == extent
        dims.append(rule.add(extent, blocked=not (whole or collapsed)))
        if not collapsed:
            window.append(dims[-1] if whole else rule.add(size, blocked=True))
    starts, parts = iter(index_dims), iter(window)
    out = [
        next(parts) if dim in numbers.offset_dims else next(starts)
        for dim in range(out_rank)
    ]
    last = rule.add(indices[-1], blocked=True)
    rule.operands, rule.results = [dims, [*index_dims, last]], [out]
    return rule


def scatter(eq: Equation) -> OpRule:
    """An update at indices: only dims that every update covers whole may be sharded."""
    numbers = eq.params["dimension_numbers"]
    operand, indices, updates = (tensor.shape for tensor in eq.ins[:3])
    rule = OpRule()
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(sorted(numbers.update_window_dims))
    update_dims: list[int | None] = [None] * len(updates)
    dims: list[int | None] = []
    for dim, extent in enumerate(operand):
        place = None if dim in absent else next(window)
        whole = place is not None and updates[place] == extent
        dims.append(rule.add(extent, blocked=not whole))
        if place is not None:
            same = dims[-1] if whole else rule.add(updates[place], blocked=True)
            update_dims[place] = same
    for place, factor in enumerate(update_dims):
        if factor is None:
            update_dims[place] = rule.add(updates[place], blocked=True)
    rule.operands = [dims, rule.whole(indices), update_dims]
    rule.results = [dims]
    return rule


def search_sorted(eq: Equation) -> OpRule:
    """A binary search: what is sought may be split, what is searched stays whole."""
    rule = OpRule()
    sought: list[int | None] = [rule.add(n) for n in eq.ins[1].shape]
    rule.operands = [rule.whole(eq.ins[0].shape), sought]
    # dims that the searched array batches lie first, and are whole there
    for dim in range(int(getattr(eq.params["_prim"], "batch_dims", 0))):
        rule.blocked.add(dim)
    rule.results = [list(sought)]
    return rule


INDEXING: dict[str, Rule] = {
    "gather": gather,
    "call_hi_primitive:SearchSorted": search_sorted,
    **dict.fromkeys(
        "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(),
        scatter,
    ),
}
