"""Ops of random programs that move elements: pieces, joins, look-ups, updates."""

from tests.random_maker import Maker, Rejected, axis_of, nonlocal_int


def _dims(n: int) -> list[int]:
    return [k for k in (2, 4, 8, 3, 5) if n % k == 0 and n > k]


def broadcast(m: Maker) -> None:
    """An array along new or wider dims, as a result of its own."""
    a = m.some(1, 3)
    shape = (m.extent(), *a.shape)
    forms = [f"jnp.broadcast_to(lax.expand_dims({{0}}, (0,)), {shape})"]
    forms += [f"lax.broadcast({{0}}, ({shape[0]},))"]
    forms += [f"jnp.repeat({{0}}, 2, axis={a.rank - 1})", "jnp.tile({0}, 2)"]
    m.emit("broadcast", m.pick(forms), a, exact=True)


def sorts(m: Maker) -> None:
    """Sorts and rankings."""
    form = m.between(0, 5)
    a = m.some(1, 3, exact=form > 1)
    axis = axis_of(m, a)
    if form == 0:
        m.emit("sort", f"jnp.sort({{0}}, axis={axis})", a, exact=True)
    elif form == 1:
        m.emit("median", f"jnp.median({{0}}, axis={axis})", a)
    elif form == 2:
        m.emit("argsort", f"jnp.argsort({{0}}, axis={axis})", a)
    elif form == 3:
        k = m.between(1, a.shape[-1])
        m.emit("top_k", f"lax.top_k({{0}}, {k})", a, exact=True)
    elif form == 4:
        b = m.like(a.shape)
        text = f"lax.sort(({{0}}, {{1}}), dimension={axis}, num_keys=1)"
        m.emit("sort", text, a, b, exact=True)
    else:
        b = m.some(1, 2, exact=True)
        m.emit("searchsorted", "jnp.searchsorted(jnp.sort({0}.ravel()), {1})", a, b)


def look_up(m: Maker) -> None:
    """Gathers by arrays of integers."""
    a = m.some(1, 3)
    axis, form = axis_of(m, a), m.between(0, 5)
    if form == 0:
        i = m.some(0, 2, dtype="int32")
        mode = m.pick(["mode='clip'", "mode='fill', fill_value=0.0", "mode='wrap'"])
        text = f"jnp.take({{0}}, {{1}}, axis={axis}, {mode})"
        m.emit("take", text, a, i, exact=True)
    elif form == 1:
        shape = [m.extent() if d == axis else n for d, n in enumerate(a.shape)]
        i = m.like(shape, "int32")
        text = f"jnp.take_along_axis({{0}}, {{1}}, axis={axis}, mode='clip')"
        m.emit("take_along_axis", text, a, i, exact=True)
    elif form == 2:
        i = m.some(1, 1, dtype="int32")
        text = "{0}.at[{1}].get(mode='fill', fill_value=0.5)"
        m.emit("at.get", text, a, i, exact=True)
    elif form == 3:
        m.emit("index", "{0}[{1}]", a, nonlocal_int(m), exact=True)
    elif form == 4:
        a = m.some(2, 3)
        i = m.some(1, 1, dtype="int32")
        text = "{0}.at[{1}, {2}].get(mode='clip')"
        m.emit("index pairs", text, a, i, m.like(i.shape, "int32"), exact=True)
    else:
        b = m.some(2, 3)
        n, k = b.shape[:2]
        i = m.like((n, m.pick(m.extents)), "int32")
        text = "jax.vmap(lambda x, i: jnp.take(x, i, axis=0, mode='clip'))({0}, {1})"
        m.emit("batched take", text, b, i, exact=True)


def update(m: Maker) -> None:
    """Scatters, and updates of slices."""
    a = m.some(1, 3)
    form = m.between(0, 5)
    if form == 0:
        i = m.some(1, 1, dtype="int32")
        u = m.like((*i.shape, *a.shape[1:]))
        how = m.pick("add max min multiply subtract".split())
        mode = m.pick(["", ", mode='drop'", ", mode='clip'"])
        text = f"{{0}}.at[{{1}}].{how}(0.3 * {{2}}{mode})"
        m.emit(f"at.{how}", text, a, i, u)
    elif form == 1:
        rows = m.like(a.shape[1:])
        text = "{0}.at[{1}].set({2})"
        m.emit("at.set", text, a, nonlocal_int(m), rows, exact=True)
    elif form == 2:
        n = a.shape[-1]
        start, stop = sorted((m.between(0, n), m.between(0, n)))
        b = m.like((*a.shape[:-1], stop - start) if stop > start else ())
        text = f"{{0}}.at[..., {start}:{stop}].add({{1}})"
        m.emit("at[slice].add", f"jnp.tanh({text})", a, b)
    elif form == 3:
        shape = [n if m.chance(50) else m.between(1, n) for n in a.shape]
        starts = [m.pick(["0", "{2}", "1"]) for _ in a.shape]
        u = m.like(shape)
        text = f"lax.dynamic_update_slice({{0}}, {{1}}, ({', '.join(starts)},))"
        m.emit("dynamic_update_slice", text, a, u, nonlocal_int(m), exact=True)
    elif form == 4:
        i = m.some(1, 1, dtype="int32")
        n = m.extent()
        u = m.like((*i.shape, *a.shape[1:]))
        text = f"0.3 * jax.ops.segment_sum({{0}}, {{1}}, num_segments={n})"
        m.emit("segment_sum", text, u, i)
    else:
        i = m.some(1, 1, dtype="int32")
        text = f"jnp.bincount(jnp.abs({{0}}), length={m.extent()})"
        m.emit("bincount", text, i)


def pieces(m: Maker) -> None:
    """Slices, static and at a computed place."""
    a = m.some(1, 4)
    form, axis = m.between(0, 6), axis_of(m, a)
    n, keep = a.shape[axis], ":, " * axis
    if form == 0:
        start = m.between(0, n - 1)
        stop, step = m.between(start + 1, n), m.between(1, 3)
        text = f"{{0}}[{keep}{start}:{stop}:{step}]"
        m.emit("slice", text, a, exact=True)
    elif form == 1:
        m.emit("pick", f"{{0}}[{keep}{m.between(-1, n - 1)}]", a, exact=True)
    elif form == 2:
        size = m.between(1, n)
        text = f"lax.dynamic_slice_in_dim({{0}}, {{1}}, {size}, {axis})"
        m.emit("dynamic_slice", text, a, nonlocal_int(m), exact=True)
    elif form == 3:
        text = f"lax.dynamic_index_in_dim({{0}}, {{1}}, {axis}, keepdims=False)"
        m.emit("dynamic_index", text, a, nonlocal_int(m), exact=True)
    elif form == 4:
        parts = m.pick([k for k in (2, 4, 3) if n % k == 0])
        m.emit("split", f"jnp.split({{0}}, {parts}, axis={axis})", a, exact=True)
    elif form == 5:
        if n > 8:
            raise Rejected
        text = f"sum(lax.unstack(jnp.tanh({{0}}), axis={axis}))"
        m.emit("unstack", f"0.4 * {text}", a)
    else:
        sizes = [n if m.chance(60) else m.between(1, n) for n in a.shape]
        starts = ", ".join(m.pick(["0", "{1}"]) for _ in a.shape)
        text = f"lax.dynamic_slice({{0}}, ({starts},), {tuple(sizes)})"
        m.emit("dynamic_slice", text, a, nonlocal_int(m), exact=True)


def joins(m: Maker) -> None:
    """Concatenations, stacks, pads, shifts."""
    a = m.some(1, 3)
    form, axis = m.between(0, 6), axis_of(m, a)
    if form == 0:
        shape = [m.extent() if d == axis else n for d, n in enumerate(a.shape)]
        b = m.like(shape)
        text = f"jnp.concatenate([{{0}}, {{1}}], axis={axis})"
        m.emit("concatenate", text, a, b, exact=True)
    elif form == 1:
        text = f"jnp.stack([{{0}}, {{1}}], axis={m.between(0, a.rank)})"
        m.emit("stack", text, a, m.like(a.shape), exact=True)
    elif form == 2:
        edges = [
            (m.between(-1, 2), m.between(0, 2), m.between(0, 1))
            if d == axis or m.chance(20)
            else (0, 0, 0)
            for d in range(a.rank)
        ]
        m.emit("pad", f"lax.pad({{0}}, 0.25, {edges})", a, exact=True)
    elif form == 3:
        text = f"jnp.roll({{0}}, {m.between(1, 3)}, axis={axis})"
        m.emit("roll", text, a, exact=True)
    elif form == 4:
        m.emit("flip", f"jnp.flip({{0}}, axis={axis})", a, exact=True)
    elif form == 5:
        mode = m.pick(["edge", "wrap", "reflect"])
        if a.shape[axis] < 2:
            raise Rejected
        widths = [(1, 1) if d == axis else (0, 0) for d in range(a.rank)]
        m.emit("jnp.pad", f"jnp.pad({{0}}, {widths}, mode={mode!r})", a, exact=True)
    else:
        text = f"jnp.diff({{0}}, axis={axis})" if m.chance(50) else "jnp.rot90({0})"
        m.emit(text.split("(")[0], text, a if "diff" in text else m.some(2, 3))


def reshapes(m: Maker) -> None:
    """Splits and merges of dims, transposes, dims of extent 1."""
    a = m.some(1, 4)
    form = m.between(0, 5)
    if form == 0:
        axis = axis_of(m, a)
        k = m.pick(_dims(a.shape[axis]))
        parts = m.pick([(a.shape[axis] // k, k), (k, a.shape[axis] // k)])
        shape = (*a.shape[:axis], *parts, *a.shape[axis + 1 :])
    elif form == 1:
        axis = m.pick(range(a.rank - 1))
        whole = a.shape[axis] * a.shape[axis + 1]
        shape = (*a.shape[:axis], whole, *a.shape[axis + 2 :])
    elif form == 2:
        order = list(range(a.rank))
        for i in range(a.rank - 1):
            j = m.between(i, a.rank - 1)
            order[i], order[j] = order[j], order[i]
        m.emit("transpose", f"jnp.transpose({{0}}, {tuple(order)})", a, exact=True)
        return
    elif form == 3:
        places = tuple(i for i, n in enumerate(a.shape) if n == 1)
        if places:
            m.emit("squeeze", f"lax.squeeze({{0}}, ({places[0]},))", a, exact=True)
        else:
            place = m.between(0, a.rank)
            m.emit("expand", f"jnp.expand_dims({{0}}, {place})", a, exact=True)
        return
    elif form == 4:
        shape = (a.size,)
    else:
        k = m.pick([k for k in (2, 4, 3, 6, 8) if a.size % k == 0])
        shape = m.pick([(k, a.size // k), (a.size // k, k)])
    m.emit("reshape", f"{{0}}.reshape{shape}", a, exact=True)
