"""Regions of random programs: loops, branches, calls, repeated blocks."""

from tests.random_maker import Maker, Rejected, nonlocal_int
from tests.random_ops import BODY, PLAIN, SMOOTH, OpMaker
from tests.random_programs import Array, Block

DEPTH = 2
"""Regions inside regions, at most."""


def _deep(m: Maker) -> None:
    if len(m.scopes) > DEPTH:
        raise Rejected


def _body(m: Maker) -> tuple[OpMaker, ...]:
    return BODY if len(m.scopes) >= DEPTH else (*BODY, *REGIONS)


def _carried(m: Maker, *arrays: Array, extra: int = 0, closed: bool = False) -> Block:
    """A function of arrays that gives all but the last `extra` of them anew."""
    params = [(a.shape, a.dtype, a.exact and a.dtype != "float32") for a in arrays]
    return m.block(params, len(arrays) - extra, _body(m), closed=closed)


def call(m: Maker) -> None:
    """A function under a transformation that keeps what it computes."""
    _deep(m)
    how = m.pick("jax.jit jax.checkpoint jax.custom_jvp jax.custom_vjp".split())
    closed = "custom" in how
    a = m.some(1, 3)
    block = _carried(m, a, m.some(0, 3), closed=closed)
    text = f"{how}({block.name})({{0}}, {{1}})"
    if "jvp" in how:
        rule = f"lambda p, t: ({block.name}(*p), t)"
        text = (
            f"(lambda f: (f.defjvp({rule}), f({{0}}, {{1}}))[1])({how}({block.name}))"
        )
    if "vjp" in how:
        rule = f"lambda *x: ({block.name}(*x), None), lambda r, t: t"
        text = (
            f"(lambda f: (f.defvjp({rule}), f({{0}}, {{1}}))[1])({how}({block.name}))"
        )
    second = block.params[1]
    operands = a, m.like(second.shape, second.dtype)
    m.emit(how, text, *operands, blocks=[block])


def gradient(m: Maker) -> None:
    """The gradient of a function."""
    _deep(m)
    a = m.some(1, 3)
    block = m.block([(a.shape, a.dtype, False)], 1, SMOOTH)
    text = f"jnp.tanh(jax.grad(lambda x: {block.name}(x).sum())({{0}}))"
    m.emit("jax.grad", text, a, blocks=[block])


def branches(m: Maker) -> None:
    """cond and switch."""
    _deep(m)
    a = m.some(0, 3)
    blocks = [_carried(m, a) for _ in range(m.between(2, 3))]
    names = [block.name for block in blocks]
    if len(names) == 2:
        which = m.like((), "bool")
        text = f"lax.cond({{0}}, {', '.join(names)}, {{1}})"
    else:
        which = nonlocal_int(m)
        text = f"lax.switch({{0}}, [{', '.join(names)}], {{1}})"
    m.emit(text.split("(")[0], text, which, a, blocks=blocks)


def loop(m: Maker) -> None:
    """fori_loop with a known number of trips, zero at times."""
    _deep(m)
    a, b = m.some(0, 3), m.some(1, 2)
    block = _carried(m, a, b)
    trips = m.pick([3, 1, 2, 4, 0])
    one = f"lambda i, c: {block.name}(*c)"
    text = f"lax.fori_loop(0, {trips}, {one}, ({{0}}, {{1}}))"
    m.emit("lax.fori_loop", text, a, b, blocks=[block])


def while_loop(m: Maker) -> None:
    """A while loop that counts, or whose number of trips is an argument."""
    _deep(m)
    a = m.some(0, 3)
    block = _carried(m, a)
    if m.chance(50):
        stop = str(m.between(1, 3))
    else:
        stop = f"jnp.abs({nonlocal_int(m).name}) % 3"
    test, one = f"lambda c: c[0] < {stop}", f"lambda c: (c[0] + 1, {block.name}(c[1]))"
    text = f"lax.while_loop({test}, {one}, (0, {{0}}))[1]"
    m.emit("lax.while_loop", text, a, blocks=[block])


def scan(m: Maker) -> None:
    """A scan over slices of an array, with a carry."""
    _deep(m)
    carry, xs = m.some(0, 3), m.some(1, 3)
    params = [(carry.shape, carry.dtype, False)]
    params += [(xs.shape[1:], xs.dtype, xs.exact)]
    block = m.block(params, 2, _body(m))
    reverse = m.pick(["", ", reverse=True"])
    text = f"lax.scan({block.name}, {{0}}, {{1}}{reverse})"
    m.emit("lax.scan", text, carry, xs, blocks=[block])


def mapped(m: Maker) -> None:
    """vmap and lax.map of a function."""
    _deep(m)
    a = m.some(1, 3)
    block = m.block([(a.shape[1:], a.dtype, a.exact)], 1, _body(m))
    how = m.pick(["jax.vmap({f})({0})", "lax.map({f}, {0})"])
    kind = how.split("(")[0]
    m.emit(kind, how.replace("{f}", block.name), a, blocks=[block])


def repeated(m: Maker) -> None:
    """Two to five equal layers, one after the other, each with weights of its own."""
    _deep(m)
    a, copies = m.some(1, 3), m.between(2, 5)
    k = a.shape[-1]
    shapes = [(k, k)] if m.chance(50) else [(k, k), (k,)]
    params = [(a.shape, a.dtype, False), *((s, "float32", True) for s in shapes)]
    block = m.block(params, 1, (*SMOOTH, *PLAIN))
    kept = [a.shape, *shapes]
    product = f"{block.name}(jnp.tanh({{0}} @ {{1}}), "
    if any(p.shape != s for p, s in zip(block.params, kept, strict=True)):
        raise Rejected
    stacked = m.chance(40)
    stacks = [m.like((copies, *shape)) for shape in shapes] if stacked else []
    for number in range(copies):
        if stacked:
            weights = [f"{w.name}[{number}]" for w in stacks]
        else:
            weights = [m.fresh(shape).name for shape in shapes]
        text = f"{product.replace('{1}', weights[0])}{', '.join(weights)})"
        (a,) = m.emit("repeated block", text, a, blocks=[block])


REGIONS: tuple[OpMaker, ...] = (
    *(call, gradient, branches, loop, while_loop, scan, mapped, repeated),
)
OPS: tuple[OpMaker, ...] = (*PLAIN, *PLAIN, *REGIONS, repeated)
"""What programs are made of."""
