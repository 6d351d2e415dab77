"""Ops of random programs that keep the shape of an array, or reduce it."""

from tests.random_maker import Maker, axis_of

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
lax.reduce_precision({0}, 8, 23)|jnp.log(jnp.cosh(jnp.tanh({0})))
lax.asin(0.9 * jnp.tanh({0}))|lax.acos(0.9 * jnp.tanh({0}))|jnp.sinh(jnp.tanh({0}))
lax.acosh(jnp.abs({0}) + 1.5)|lax.atanh(0.5 * jnp.tanh({0}))|jnp.tan(jnp.tanh({0}))
lax.erfc({0})|lax.bessel_i1e({0})|lax.igammac(jnp.abs({0}) + 1.0, 1.5)
lax.zeta(jnp.abs({0}) + 2.0, 1.5)|lax.betainc(1.5, 2.0, jax.nn.sigmoid({0}))
lax.imag(lax.conj(lax.complex({0}, 0.5 * {0})))"""
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


def _split(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


UNARY_FORMS, BINARY_FORMS = _split(UNARY), _split(BINARY)
EXACT_FORMS, INTEGER_FORMS, TEST_FORMS = map(_split, (EXACT_UNARY, INTEGER, TESTS))
OWN_SUM = "lambda x, y: x + y - 0.1 * x * y"
LOGIC_FORMS = ["{0} & {1}", "{0} | {1}", "~{0}", "{0} ^ {1}"]


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
        text = f"lax.reduce(jnp.tanh({{0}}), 0.0, {OWN_SUM}, ({axis_of(m, a)},))"
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


def windows(m: Maker) -> None:
    """Pools, and the gradients of pools."""
    a = m.some(1, 3, exact=True)
    sizes = [m.between(1, min(3, n)) for n in a.shape]
    strides = [m.between(1, 2) for _ in sizes]
    padding = m.pick(["'VALID'", "'SAME'"])
    start, of, scale = m.pick(
        [("0.0", "lax.add", "0.3 * "), ("-jnp.inf", "lax.max", ""),
         ("jnp.inf", "lax.min", ""), ("0.0", OWN_SUM, "")]
    )  # fmt: skip
    call = f"lax.reduce_window(x, {start}, {of}, {tuple(sizes)}, {tuple(strides)}"
    call = f"{call}, {padding})"
    if m.chance(25) and of in ("lax.add", "lax.max"):
        text = f"jax.grad(lambda x: jnp.tanh({scale}{call}).sum())({{0}})"
        m.emit(f"grad of window {of}", text, a)
        return
    text = scale + call.replace("(x,", "(jnp.tanh({0})," if of == OWN_SUM else "({0},")
    m.emit(f"window {of}", text, a, exact=of in ("lax.max", "lax.min"))
