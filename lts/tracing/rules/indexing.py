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
    rule.passes = {0: 0, 2: 2}  # the rows are read and written
    return rule


def scatter(eq: Equation) -> OpRule:
    """An update at indices.

    Dims that every update covers whole pass through, batching dims likewise. A dim of
    which an update writes one position may be sharded with indices and updates whole:
    each device applies what falls on its part. Updates themselves may be split where
    they are added, which leaves partial sums.
    """
    numbers = eq.params["dimension_numbers"]
    operand, indices, updates = (tensor.shape for tensor in eq.ins[:3])
    rule, absent = OpRule(), set(numbers.inserted_window_dims)
    batching = dict(
        zip(
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            strict=True,
        )
    )
    window = iter(sorted(numbers.update_window_dims))
    update_dims: list[int | None] = [None] * len(updates)
    index_dims: list[int | None] = [None] * (len(indices) - 1)
    dims: list[int | None] = []
    for dim, extent in enumerate(operand):
        if dim in batching:
            dims.append(rule.add(extent))
            index_dims[batching[dim]] = dims[-1]
            continue
        place = None if dim in absent else next(window)
        size = 1 if place is None else updates[place]
        dims.append(rule.add(extent, blocked=size not in (1, extent)))
        if place is not None:
            whole = size == extent
            update_dims[place] = dims[-1] if whole else rule.add(size, blocked=True)
    summed = eq.primitive in ("scatter-add", "scatter-sub")
    places = [p for p in range(len(updates)) if p not in numbers.update_window_dims]
    for number, place in enumerate(places):
        if index_dims[number] is None:
            index_dims[number] = rule.add(indices[number], blocked=not summed)
        update_dims[place] = index_dims[number]
    last = rule.add(indices[-1], blocked=True)
    rule.operands = [dims, [*index_dims, last], update_dims]
    rule.results = [dims]
    # In place: updates are read and written; an array made for them is written once.
    rule.passes = {0: 0, 2: 2, 3: int(eq.ins[0].is_local)}
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


SCATTERS: dict[str, Rule] = dict.fromkeys(
    "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(),
    scatter,
)
INDEXING: dict[str, Rule] = {
    "gather": gather,
    "call_hi_primitive:SearchSorted": search_sorted,
    **SCATTERS,
}
