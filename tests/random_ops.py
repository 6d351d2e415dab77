"""Ops that random programs are made of, one function of a `Maker` per family."""

import math
from collections.abc import Callable

from tests.random_programs import Array, Maker, Rejected

OpMaker = Callable[[Maker], None]

UNARY = """jnp.tanh({0})|-{0}|jnp.abs({0})|jnp.sin({0})|jax.nn.relu({0})
jax.nn.sigmoid({0})|jnp.exp(-jnp.abs({0}))|jnp.sqrt(jnp.abs({0}) + 0.1)
lax.rsqrt(jnp.square({0}) + 0.5)|jnp.log1p(jnp.abs({0}))|lax.erf({0})
jax.nn.gelu({0})|jax.nn.silu({0})|jax.nn.softplus({0})|jnp.tanh({0}) ** 3
lax.stop_gradient({0})|lax.optimization_barrier({0})|jnp.nan_to_num({0})
lax.expm1(-jnp.abs({0}))|lax.exp2(jnp.tanh({0}))|lax.lgamma(jnp.abs({0}) + 1.0)
lax.digamma(jnp.abs({0}) + 1.0)|lax.bessel_i0e({0})|jnp.arctan({0})
jax.nn.leaky_relu({0})|jnp.clip({0}, -0.5, 0.5)|lax.asinh({0})|jnp.cos({0})
lax.erf_inv(0.5 * jnp.tanh({0}))|jax.nn.elu({0})|jax.nn.hard_swish({0})
jnp.where({0} > 0.0, {0}, 0.1 * {0})|1.0 / (1.0 + {0} * {0})|0.5 * {0} + 0.25
lax.cbrt(jnp.abs({0}) + 0.2)|lax.polygamma(1.0, jnp.abs({0}) + 1.0)
lax.igamma(jnp.abs({0}) + 1.0, 1.5)|jax.scipy.special.logit(jax.nn.sigmoid({0}))
jnp.abs(lax.complex({0}, 0.5 * {0}))|lax.imag(jnp.exp(1j * {0}))
lax.reduce_precision({0}, 8, 23)|jnp.log(jnp.cosh(jnp.tanh({0})))"""
EXACT_UNARY = """jnp.floor({0})|jnp.sign({0})|jnp.round({0})|{0} > 0.1
{0}.astype(jnp.int32)|lax.bitcast_convert_type({0}, jnp.int32) % 7
jnp.isfinite({0})|{0}.astype(jnp.bfloat16).astype(jnp.float32)|jnp.ceil({0})
{0}.astype(jnp.float16).astype(jnp.float32)|jnp.nextafter({0}, jnp.ones_like({0}))
lax.reduce_precision({0}, 5, 10)"""
BINARY = """0.5 * ({0} + {1})|{0} - 0.5 * {1}|jnp.tanh({0} * {1})
jnp.maximum({0}, {1})|jnp.minimum({0}, {1})|lax.atan2({0}, jnp.abs({1}) + 1.0)
{0} / (jnp.abs({1}) + 1.0)|0.5 * jnp.logaddexp({0}, {1})|jnp.where({0} > {1}, {0}, {1})
jnp.hypot({0}, {1} + 3.0)|(jnp.abs({0}) + 0.5) ** jnp.tanh({1})"""
INTEGER = """({0} + {1}) % 7|{0} * {1} % 5|{0} ^ {1}|{0} & {1}|jnp.maximum({0}, {1})
{0} // (jnp.abs({1}) % 8 + 1)|{0} % 3|-{0}|lax.clz({0})|lax.population_count({0})
({0} % 5) << 1|{0} >> 1|lax.rem({0}, jnp.abs({1}) % 8 + 1)"""
TESTS = "{0} > {1}|{0} == {1}|{0} <= {1}|{0} != {1}"
LOGIC = "{0} & {1}|{0} | {1}|~{0}|{0} ^ {1}"


def _split(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


UNARY_FORMS, BINARY_FORMS = _split(UNARY), _split(BINARY)
EXACT_FORMS, INTEGER_FORMS, TEST_FORMS = map(_split, (EXACT_UNARY, INTEGER, TESTS))
LOGIC_FORMS = ["{0} & {1}", "{0} | {1}", "~{0}", "{0} ^ {1}"]


def axis_of(m: Maker, a: Array) -> int:
    """One of its dims."""
    return m.pick(range(a.rank))


def nonlocal_int(m: Maker) -> Array:
    """A scalar integer: an index, a condition."""
    return m.some(0, 0, dtype="int32")


def _kind(text: str) -> str:
    """`lax.erf({0})` -> `lax.erf`; an operator's kind is its text."""
    head = text.split("(")[0]
    return head if head and "{" not in head else text


def unary(m: Maker) -> None:
    """Elementwise, one operand."""
    text = m.pick(UNARY_FORMS)
    m.emit(_kind(text), text, m.some(), exact=text in ("-{0}", "jnp.abs({0})"))


def exact_unary(m: Maker) -> None:
    """Elementwise, with jumps."""
    text = m.pick(EXACT_FORMS)
    m.emit(_kind(text), text, m.some(exact=True), exact=True)


def binary(m: Maker) -> None:
    """Elementwise, two operands of one shape, or one with dims of extent 1."""
    a, text = m.some(), m.pick(BINARY_FORMS)
    shape = [1 if a.rank and m.chance(25) else n for n in a.shape]
    b = m.like(shape)
    pair = (b, a) if m.chance(50) else (a, b)
    m.emit(_kind(text), text, *pair, exact="imum" in text)


def widened(m: Maker) -> None:
    """A vector or matrix against one of more dims: a bias, an outer sum."""
    a = m.some(2, 4)
    dims = sorted({axis_of(m, a) for _ in range(m.between(1, a.rank - 1))})
    b = m.like([a.shape[i] for i in dims])
    new = tuple(i for i in range(a.rank) if i not in dims)
    text = m.pick(["{0} + 0.5 * ", "jnp.tanh({0}) * ", "{0} - "])
    if m.chance(40):
        wide = f"lax.broadcast_in_dim({{1}}, {a.shape}, {tuple(dims)})"
    else:
        wide = f"lax.expand_dims({{1}}, {new})"
    m.emit("broadcast", text + wide, a, b)


def broadcast(m: Maker) -> None:
    """An array along new or wider dims, as a result of its own."""
    a = m.some(1, 3)
    shape = (m.extent(), *a.shape)
    forms = [f"jnp.broadcast_to(lax.expand_dims({{0}}, (0,)), {shape})"]
    forms += [f"lax.broadcast({{0}}, ({shape[0]},))"]
    forms += [f"jnp.repeat({{0}}, 2, axis={a.rank - 1})", "jnp.tile({0}, 2)"]
    m.emit("broadcast", m.pick(forms), a, exact=True)


def integers(m: Maker) -> None:
    """Arithmetic of integers."""
    a, text = m.some(dtype="int32"), m.pick(INTEGER_FORMS)
    m.emit(_kind(text), text, a, m.like(a.shape, "int32"))


def truths(m: Maker) -> None:
    """Comparisons and logic."""
    if m.chance(50):
        a = m.some(dtype="bool")
        m.emit("logic", m.pick(LOGIC_FORMS), a, m.like(a.shape, "bool"))
        return
    a = m.some(exact=True, dtype=m.pick(["float32", "int32"]))
    m.emit("compare", m.pick(TEST_FORMS), a, m.like(a.shape, a.dtype, exact=True))


def selects(m: Maker) -> None:
    """where, select, clamp; a mask may have dims of extent 1, or none."""
    a = m.some()
    b = m.like(a.shape)
    if m.chance(30):
        m.emit("clamp", "lax.clamp(-jnp.abs({1}), {0}, jnp.abs({1}))", a, b)
        return
    if m.chance(30):
        mask = m.like((), "bool")
        m.emit("select", "lax.select({0}, {1}, {2})", mask, a, b, exact=True)
        return
    shape = [1 if m.chance(20) else n for n in a.shape]
    mask = m.like(shape, "bool")
    m.emit("where", "jnp.where({0}, {1}, {2})", mask, a, b, exact=True)


def numbers(m: Maker) -> None:
    """Integers and truths to floats, iotas, one-hot rows, masks of a triangle."""
    form = m.between(0, 4)
    if form == 0:
        a = m.some(dtype=m.pick(["int32", "bool"]))
        text = "jnp.tanh(0.2 * {0}.astype(jnp.float32))"
        m.emit("convert", text, a)
    elif form == 1:
        n = m.extent()
        m.emit("one_hot", f"jax.nn.one_hot({{0}}, {n})", m.some(0, 2, dtype="int32"))
    elif form == 2:
        a = m.some(2, 3)
        name = m.pick(["tril", "triu"])
        m.emit(name, f"jnp.{name}({{0}}, {m.between(-1, 1)})", a, exact=True)
    elif form == 3:
        a = m.some(1, 3)
        n, axis = a.rank, axis_of(m, a)
        text = f"{{0}} + 0.1 * lax.broadcasted_iota(jnp.float32, {a.shape}, {axis})"
        m.emit("iota", f"jnp.tanh({text})", a)
    else:
        text = "lax.bitcast_convert_type(lax.bitcast_convert_type({0}, jnp.uint8), "
        m.emit("bitcast", text + "jnp.float32)", m.some(1, 3, exact=True), exact=True)


def reduction(m: Maker) -> None:
    """A sum, mean, extreme or statistic over some dims."""
    a = m.some(1, 4)
    axes = tuple(sorted({axis_of(m, a) for _ in range(m.between(1, a.rank))}))
    name = m.pick(
        """jnp.sum jnp.mean jnp.max jnp.min jnp.prod jnp.var jax.nn.logsumexp
        jnp.std""".split()
    )
    keep = ", keepdims=True" if m.chance(40) else ""
    given = f"jnp.tanh({{0}}), axis={axes}{keep}"
    text = {
        "jnp.sum": f"0.3 * jnp.sum({given})",
        "jnp.std": f"jnp.sqrt(jnp.var({given}) + 0.1)",
        "jnp.max": f"jnp.max({{0}}, axis={axes}{keep})",
        "jnp.min": f"jnp.min({{0}}, axis={axes}{keep})",
    }.get(name, f"{name}({given})")
    m.emit(name, text, a, exact=name in ("jnp.max", "jnp.min"))


def whole_reduction(m: Maker) -> None:
    """Reductions of integers and truths, and by a function of one's own."""
    form = m.between(0, 5)
    if form == 0:
        a = m.some(1, 3, dtype="bool")
        name = m.pick(["all", "any", "sum"])
        m.emit(f"jnp.{name}", f"jnp.{name}({{0}}, axis={axis_of(m, a)})", a)
    elif form == 1:
        a = m.some(1, 3, dtype="int32")
        name = m.pick("sum max min bitwise_xor bitwise_or bitwise_and".split())
        name = name.replace("bitwise", "jnp.bitwise")
        call = f"{name}.reduce" if "." in name else f"jnp.{name}"
        m.emit(call, f"{call}({{0}}, axis={axis_of(m, a)})", a)
    elif form == 2:
        a = m.some(1, 3, exact=True)
        name = m.pick(["argmax", "argmin"])
        m.emit(name, f"jnp.{name}({{0}}, axis={axis_of(m, a)})", a)
    elif form == 3:
        a = m.some(1, 3)
        reducer = "lambda x, y: x + y - 0.1 * x * y"
        text = f"lax.reduce(jnp.tanh({{0}}), 0.0, {reducer}, ({axis_of(m, a)},))"
        m.emit("lax.reduce", text, a)
    elif form == 4:
        a = m.some(1, 3, exact=True)
        m.emit("argmax", "jnp.argmax({0})", a)
    else:
        a = m.some(1, 3, exact=True)
        m.emit("count_nonzero", f"jnp.count_nonzero({{0}} > 0, {axis_of(m, a)})", a)


def cumulative(m: Maker) -> None:
    """Running sums, products, extremes."""
    a = m.some(1, 3)
    axis, reverse = axis_of(m, a), m.pick(["", ", reverse=True"])
    name = m.pick("cumsum cummax cumprod cumlogsumexp cummin associative".split())
    value = "{0}" if name in ("cummax", "cummin") else "jnp.tanh({0})"
    text = f"lax.{name}({value}, axis={axis}{reverse})"
    if name == "associative":
        adds = m.pick(["lambda x, y: 0.5 * x + y", "jnp.maximum", "jnp.add"])
        text = f"lax.associative_scan({adds}, jnp.tanh({{0}}), axis={axis}{reverse})"
    scale = "0.3 * " if name in ("cumsum", "associative") else ""
    m.emit(name, scale + text, a, exact=name in ("cummax", "cummin"))


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
        how = m.pick("add max min".split())
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


def _dims(n: int) -> list[int]:
    return [k for k in (2, 4, 8, 3, 5) if n % k == 0 and n > k]


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


def products(m: Maker) -> None:
    """Contractions."""
    a = m.some(1, 3)
    form = m.between(0, 6)
    k, n = a.shape[-1], m.extent()
    scale = f"{(1.0 / max(1, k)) ** 0.5:.3f} * "
    if form == 0:
        m.emit("matmul", f"jnp.tanh({scale}({{0}} @ {{1}}))", a, m.like((k, n)))
    elif form == 1:
        b = m.like((n, k))
        text = "jnp.einsum('...k,nk->n...', {0}, {1})"
        m.emit("einsum", f"jnp.tanh({scale}{text})", a, b)
    elif form == 2:
        a = m.some(2, 4)
        if a.rank < 2:
            raise Rejected
        batch = a.rank - 2
        dims = ((a.rank - 1,), (batch + 1,)), (tuple(range(batch)),) * 2
        b = m.like((*a.shape[:-2], n, a.shape[-1]))
        text = f"lax.dot_general({{0}}, {{1}}, {dims})"
        m.emit("dot_general", f"jnp.tanh({scale}{text})", a, b)
    elif form == 3:
        a = m.some(2, 2)
        text = m.pick(["{0} @ {0}.T", "{0}.T @ {0}"])
        m.emit("gram", f"jnp.tanh(0.2 * ({text}))", a)
    elif form == 4:
        m.emit("outer", "jnp.outer({0}, {1})", m.some(1, 1), m.some(1, 1))
    elif form == 5:
        a = m.some(2, 3)
        b = m.like((a.shape[0], a.shape[-1], n))
        text = "jnp.einsum('b...k,bkn->b...n', {0}, {1})"
        m.emit("einsum batch", f"jnp.tanh({scale}{text})", a, b)
    else:
        b = m.like(a.shape)
        text = m.pick(["jnp.vdot({0}, {1})", "jnp.tensordot({0}, {1}, axes=1)"])
        if "tensordot" in text:
            b = m.like((k, n))
        m.emit(text.split("(")[0], f"jnp.tanh({scale}{text})", a, b)


def convolution(m: Maker) -> None:
    """Convolutions of one and two dims: groups, strides, dilation, transposed."""
    rank = m.between(1, 2)
    space = [m.between(2, 8 if rank == 1 else 5) for _ in range(rank)]
    groups, batch = m.pick([1, 2, 4]), m.pick([2, 1, 4, 8])
    inner, outer = groups * m.pick([1, 2]), groups * m.pick([1, 2])
    batch_groups = 2 if groups == 1 and batch % 2 == 0 and m.chance(15) else 1
    outer *= batch_groups
    x = m.like((batch, inner, *space))
    k = m.like((outer, inner // groups, *(m.between(1, 3) for _ in space)))
    strides, names = [m.between(1, 2) for _ in space], "HW"[:rank]
    numbers = f"('NC{names}', 'OI{names}', 'NC{names}')"
    padding = m.pick(["'SAME'", "'VALID'", str([(1, 2)] * rank)])
    if padding == "'VALID'" and any(
        n < w for n, w in zip(space, k.shape[2:], strict=True)
    ):
        raise Rejected
    text = f"lax.conv_general_dilated({{0}}, {{1}}, {strides}, {padding}, "
    if m.chance(20) and padding.startswith("["):
        text += f"lhs_dilation={[2] * rank}, rhs_dilation={[m.between(1, 2)] * rank}, "
        text = text.replace(str([(1, 2)] * rank), str([(2, 2)] * rank))
    text += f"dimension_numbers={numbers}, feature_group_count={groups}, "
    text += f"batch_group_count={batch_groups})"
    m.emit("conv", f"jnp.tanh(0.4 * {text})", x, k)


def transforms(m: Maker) -> None:
    """Fourier transforms."""
    a = m.some(1, 3)
    axis = axis_of(m, a)
    form = m.pick(
        [
            f"jnp.fft.fft({{0}}, axis={axis}).real",
            f"jnp.abs(jnp.fft.rfft({{0}}, axis={axis}))",
            f"jnp.fft.irfft(jnp.fft.fft({{0}}), n={max(2, a.shape[-1] // 2 * 2)})",
            "jnp.fft.fft2({0}).imag",
        ]
    )
    a = m.some(2, 3) if "fft2" in form else a
    m.emit(form.split("({")[0], f"jnp.tanh(0.3 * {form})", a)


def windows(m: Maker) -> None:
    """Pools, and the gradients of pools."""
    a = m.some(1, 3, exact=True)
    sizes = [m.between(1, min(3, n)) for n in a.shape]
    strides = [m.between(1, 2) for _ in sizes]
    padding = m.pick(["'VALID'", "'SAME'"])
    start, of, scale = m.pick(
        [("0.0", "lax.add", "0.3 * "), ("-jnp.inf", "lax.max", ""),
         ("jnp.inf", "lax.min", "")]
    )  # fmt: skip
    call = f"lax.reduce_window(x, {start}, {of}, {tuple(sizes)}, {tuple(strides)}"
    call = f"{call}, {padding})"
    if m.chance(25) and of != "lax.min":
        text = f"jax.grad(lambda x: jnp.tanh({scale}{call}).sum())({{0}})"
        m.emit(f"grad of window {of}", text, a)
        return
    text = scale + call.replace("(x,", "({0},", 1)
    m.emit(f"window {of}", text, a, exact=of != "lax.add")


def linear_algebra(m: Maker) -> None:
    """Factorisations of well-conditioned batches."""
    n = m.pick([4, 2, 3, 5, 8])
    batch = m.pick([(), (4,), (8,), (2, 4), (3,)])
    a = m.like((*batch, n, n))
    square = f"(0.3 * ({{0}} @ {{0}}.mT) + lax.broadcast(2.0 * jnp.eye({n}), {batch}))"
    form = m.between(0, 8)
    b = m.like((*batch, n, m.between(1, 8)))
    if form == 0:
        m.emit("cholesky", f"jnp.linalg.cholesky({square})", a)
    elif form == 1:
        text = f"lax.linalg.triangular_solve({square}, {{1}}, left_side=True, "
        m.emit("triangular_solve", f"{text}lower={m.chance(50)})", a, b)
    elif form == 2:
        m.emit("qr", f"jnp.linalg.qr({square})", a)
    elif form == 3:
        m.emit("solve", f"jnp.linalg.solve({square}, {{1}})", a, b)
    elif form == 4:
        m.emit("eigvalsh", f"0.3 * jnp.linalg.eigvalsh({square})", a)
    elif form == 5:
        m.emit("svd", f"0.3 * jnp.linalg.svd({square}, compute_uv=False)", a)
    elif form == 6:
        m.emit("slogdet", f"jnp.linalg.slogdet({square})[1]", a)
    elif form == 7:
        m.emit("inv", f"jnp.linalg.inv({square})", a)
    else:
        text = f"lax.linalg.triangular_solve({square}, jnp.swapaxes({{1}}, -1, -2), "
        m.emit("triangular_solve", f"{text}left_side=False, lower=True)", a, b)


def layers(m: Maker) -> None:
    """Softmax, norms, attention, gated units."""
    form = m.between(0, 6)
    a = m.some(1, 3)
    n = a.shape[-1]
    if form == 0:
        name = m.pick(["softmax", "log_softmax"])
        axis = axis_of(m, a)
        m.emit(name, f"jnp.tanh(jax.nn.{name}({{0}}, axis={axis}))", a)
    elif form == 1:
        new = tuple(range(a.rank - 1))
        mean = "({0} - {0}.mean(-1, keepdims=True))"
        var = "lax.rsqrt({0}.var(-1, keepdims=True) + 0.3)"
        text = f"{mean} * {var} * lax.expand_dims({{1}}, {new})"
        m.emit("layer norm", text, a, m.like((n,)))
    elif form == 2:
        text = "{0} * lax.rsqrt(jnp.mean({0} * {0}, axis=-1, keepdims=True) + 0.3)"
        m.emit("rms norm", text, a)
    elif form == 3:
        batch, length, heads, head = m.pick([2, 1, 8]), m.pick([4, 8, 3]), 2, 4
        q = m.like((batch, length, heads, head))
        k = m.like((batch, length, heads // m.pick([1, 2]), head))
        text = "jax.nn.dot_product_attention({0}, {1}, {1}, is_causal="
        m.emit("attention", f"{text}{m.chance(50)})", q, k)
    elif form == 4:
        w, v = m.like((n, 8)), m.like((n, 8))
        scale = 1 / n**0.5
        text = f"jax.nn.silu({scale:.3f} * ({{0}} @ {{1}})) * jnp.tanh({{0}} @ {{2}})"
        m.emit("gated unit", text, a, w, v)
    elif form == 5:
        if n % 2:
            raise Rejected
        m.emit("glu", "jax.nn.glu({0})", a)
    else:
        axis = axis_of(m, a)
        text = f"jax.nn.standardize({{0}}, axis={axis}, epsilon=0.3)"
        m.emit("standardize", text, a)


def randomness(m: Maker) -> None:
    """Random numbers of keys that are arguments, and of keys made of them."""
    form = m.between(0, 5)
    key = m.some(0, 0, dtype="key", shape=())
    if form == 0:
        shape = m.shape(1, 3)
        name = m.pick(["normal", "uniform", "truncated_normal"])
        args = "-1.0, 1.0, " if name == "truncated_normal" else ""
        text = f"jax.random.{name}({{0}}, {args}shape={shape})"
        m.emit(f"random.{name}", text, key, exact=name == "uniform")
    elif form == 1:
        text = f"jax.random.randint({{0}}, {m.shape(0, 2)}, 0, 8)"
        m.emit("random.randint", text, key)
    elif form == 2:
        text = "jax.random.fold_in({0}, {1})"
        m.emit("random.fold_in", text, key, nonlocal_int(m))
    elif form == 3:
        m.emit("random.split", f"jax.random.split({{0}}, {m.extent()})", key)
    elif form == 4:
        keys = m.some(1, 1, dtype="key")
        text = f"jax.vmap(lambda k: jax.random.uniform(k, {m.shape(0, 1)}))({{0}})"
        m.emit("random per key", text, keys, exact=True)
    else:
        text = f"jax.random.bernoulli({{0}}, 0.5, {m.shape(1, 2)})"
        m.emit("random.bernoulli", text, key)


PLAIN: tuple[OpMaker, ...] = (
    *(unary, binary, reduction, products, reshapes),
    *(widened, selects, pieces, joins, layers, cumulative, look_up, update, sorts),
    *(exact_unary, integers, truths, numbers, whole_reduction, broadcast),
    *(convolution, transforms, windows, linear_algebra, randomness),
)
SMOOTH: tuple[OpMaker, ...] = (unary, binary, products, layers, widened)
"""For bodies of loops and functions that are differentiated."""

BODY: tuple[OpMaker, ...] = (*SMOOTH, *PLAIN)


def _sizes(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
