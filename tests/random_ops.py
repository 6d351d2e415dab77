"""Ops that random programs are made of, one function of a `Maker` per family."""

from collections.abc import Callable

from tests.random_arrays import (
    broadcast,
    joins,
    look_up,
    pieces,
    reshapes,
    sorts,
    update,
)
from tests.random_elementwise import (
    binary,
    cumulative,
    exact_unary,
    integers,
    numbers,
    reduction,
    selects,
    truths,
    unary,
    whole_reduction,
    widened,
    windows,
)
from tests.random_maker import Maker, Rejected, axis_of, nonlocal_int

OpMaker = Callable[[Maker], None]


def products(m: Maker) -> None:
    """Contractions."""
    a = m.some(1, 3)
    form = m.between(0, 7)
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
    elif form == 7:
        a = m.some(2, 2)
        groups = m.between(1, min(4, a.shape[0]))
        w = m.like((groups, a.shape[1], n))
        text = "lax.ragged_dot({0}, {1}, jnp.abs({2}) % 2)"
        m.emit("ragged_dot", f"jnp.tanh({text})", a, w, m.like((groups,), "int32"))
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


def linear_algebra(m: Maker) -> None:
    """Factorisations of well-conditioned batches."""
    n = m.pick([4, 2, 3, 5, 8])
    batch = m.pick([(), (4,), (8,), (2, 4), (3,)])
    a = m.like((*batch, n, n))
    square = f"(0.3 * ({{0}} @ {{0}}.mT) + lax.broadcast(2.0 * jnp.eye({n}), {batch}))"
    form = m.between(0, 9)
    b = m.like((*batch, n, m.between(1, 8)))
    if form == 9:
        edge = m.like((*batch, n))
        text = "lax.linalg.tridiagonal_solve({0}, jnp.abs({0}) + 4.0, 0.5 * {0}, {1})"
        m.emit("tridiagonal_solve", text, edge, b)
    elif form == 0:
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
    form = m.between(0, 7)
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
    elif form == 6:
        text = "jax.random.wrap_key_data(jax.random.key_data(jax.random.clone({0})))"
        m.emit("random.clone", text, key)
    elif form == 7:
        m.emit("random.key", "jax.random.key({0})", nonlocal_int(m))
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
