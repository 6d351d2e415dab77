"""Numbers as people read them; the data is in SI base units."""


def duration(time_s: float) -> str:
    """Seconds with a unit that fits.

    >>> duration(6.1e-6), duration(0.0291), duration(2.5)
    ('6.1 us', '29.1 ms', '2.50 s')
    """
    if time_s < 1e-3:
        return f"{time_s * 1e6:.1f} us"
    if time_s < 1:
        return f"{time_s * 1e3:.1f} ms"
    return f"{time_s:.2f} s"


def milliseconds(time_s: float) -> str:
    """Always in ms, so that it can be held against a limit.

    >>> milliseconds(1.25)
    '1250.0 ms'
    """
    return f"{time_s * 1e3:.1f} ms"


def size(nbytes: float) -> str:
    """Bytes with a decimal unit that fits.

    >>> size(21.2e9), size(131072), size(12)
    ('21.2 GB', '131.1 kB', '12 B')
    """
    for unit, scale in ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def percent(share: float) -> str:
    """A share of 1 in percent.

    >>> percent(0.5021)
    '50.2%'
    """
    return f"{share * 100:.1f}%"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")
