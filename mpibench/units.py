"""Sizes, durations and shares as people write them, and back. The only place that scales units.

Inside the program everything is bytes and seconds. Decimal numbers only; K, M and G (also KiB,
KB) always mean 1024; a duration needs its unit. Every parser raises ValueError with a message
that says what would be right.
"""

import re
from typing import NamedTuple

_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_BYTES = re.compile(_NUMBER + r"\s*(?:([KMG])(?:I?B)?|B)?", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(_NUMBER + r"\s*(ns|us|ms|s)", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST_NBYTES = (1 << 63) - 1  # MPI's and numpy's counts are signed
_MOST_SIZES = 10_000  # more cells than any budget can visit: a typing error


class Compute(NamedTuple):
    """Compute per layer as asked for: a duration to calibrate to, or one GEMM of a given order."""

    label: str  # as it appears in case names: "1ms" or "n=512"
    seconds: float | None  # the duration asked for; None with an order
    order: int | None  # the GEMM's order; None with a duration


class IterationRange(NamedTuple):
    """Least and most iterations of a cell."""

    least: int
    most: int


def parse_bytes(text: str) -> int:
    """A number of bytes: "0", "100000", "64K", "1.5MiB".

    Raises:
        ValueError: if it is no such number, or not a whole number of bytes.
    """
    match = _BYTES.fullmatch(text)
    if not match:
        raise ValueError("a size is a number of bytes with an optional K, M or G, such as 64K")
    whole, _, decimals = match[1].partition(".")
    # In integers: a float would round sizes past 2^53.
    scale: int = 10 ** len(decimals)
    nbytes, rest = divmod(int(whole + decimals) * _FACTORS[(match[2] or "").upper()], scale)
    if rest:
        raise ValueError(f"{text} is not a whole number of bytes")
    if nbytes > _MOST_NBYTES:
        raise ValueError("a size is below 2^63 bytes, such as 64K")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """The shortest exact name that `parse_bytes` reads back: 65536 is "64K", 100000 is "100000"."""
    for suffix in ("G", "M", "K"):
        if nbytes and nbytes % _FACTORS[suffix] == 0:
            return f"{nbytes // _FACTORS[suffix]}{suffix}"
    return str(nbytes)


def approximate_bytes(nbytes: float) -> str:
    """A size for people, to three digits: 183500.8 is "179 KiB"."""
    for suffix in ("G", "M", "K"):
        if nbytes >= _FACTORS[suffix]:
            return f"{three_digits(nbytes / _FACTORS[suffix])} {suffix}iB"
    return f"{nbytes:.0f} B"


def parse_duration(text: str) -> float:
    """A duration in seconds: "50us", "1.5ms", "40s". More than zero, with its unit.

    Raises:
        ValueError: if it is no such duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        if _PLAIN.fullmatch(text.strip()) and float(text):
            raise ValueError(f"a duration needs its unit (ns, us, ms or s), such as {text}ms")
        raise ValueError("a duration is a number and its unit (ns, us, ms or s), such as 1ms")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds < float("inf"):
        raise ValueError("a duration is more than zero and finite, such as 1ms")
    return seconds


def parse_poll_interval(text: str) -> float | None:
    """A duration in seconds; None for "tune": to be found.

    Raises:
        ValueError: if it is neither.
    """
    if text.strip() == "tune":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}; or tune") from None


def format_duration(seconds: float) -> str:
    """A duration for people, to three digits: 0.00123 is "1.23 ms"."""
    if seconds != seconds:
        return "?"  # not a number: there is none
    magnitude = abs(seconds)
    for unit in ("s", "ms", "us"):
        if magnitude >= 0.9995 * _SECONDS[unit]:
            return f"{three_digits(seconds / _SECONDS[unit])} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def three_digits(value: float) -> str:
    """A number to three significant digits, without an exponent."""
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{decimals}f}"


def parse_share(text: str) -> float:
    """A share between 0 and 100 %, both excluded: "5%" or "0.05" is 0.05.

    Raises:
        ValueError: if it is no such share.
    """
    body = text.strip()
    match = _PLAIN.fullmatch(body.removesuffix("%").strip())
    share = float(match[0]) * (0.01 if body.endswith("%") else 1.0) if match else 0.0
    if not 0.0 < share < 1.0:
        raise ValueError("it lies between 0 % and 100 %, both excluded, such as 5%")
    return share


def parse_count(text: str) -> int:
    """A whole number of 0 or more, in decimal digits."""
    if not re.fullmatch(r"\d+", text.strip(), re.ASCII):
        raise ValueError("it is a whole number, such as 0")
    return int(text)


def split_list(text: str) -> list[str]:
    """The items of a comma-separated list: none empty, none repeated, at least one."""
    items = [item.strip() for item in text.split(",")]
    if "" in items:
        raise ValueError("a list has no empty item, such as a,b")
    for item in items:
        if items.count(item) > 1:
            raise ValueError(f"{item} is there twice; name each item once")
    return items


def parse_sizes(text: str) -> tuple[int, ...]:
    """Message sizes in bytes, ascending: a range LO:HI (doubling) or LO:HI:xF, or a list.

    HI is always measured, whether or not the steps land on it.
    """
    if ":" in text:
        return _parse_size_range(text)
    sizes = [parse_bytes(item) for item in split_list(text)]
    if len(set(sizes)) < len(sizes):
        raise ValueError("the same size is there twice; name each size once")
    return tuple(sorted(sizes))


def _parse_size_range(text: str) -> tuple[int, ...]:
    """The sizes of LO:HI or LO:HI:xF."""
    parts = text.split(":")
    if len(parts) > 3 or "" in (part.strip() for part in parts) or "," in text:
        raise ValueError("a range is LO:HI or LO:HI:xF, such as 1K:16M")
    low, high = parse_bytes(parts[0]), parse_bytes(parts[1])
    if low < 1:
        raise ValueError("a range starts at 1 byte or more; 0 belongs in a list, such as 0,1K")
    if low > high:
        raise ValueError(f"a range goes upwards, such as {parts[1]}:{parts[0]}")
    factor = 2.0
    if len(parts) == 3:
        step = parts[2].strip()
        factor = float(step[1:]) if step[:1] == "x" and _PLAIN.fullmatch(step[1:]) else 0.0
        if factor <= 1.0:
            raise ValueError("the step of a range is x and a factor over 1, such as x4")
    sizes = [low]
    exact = min(low * factor, high)
    steps = 0
    while round(exact) < high:
        if round(exact) > sizes[-1]:
            sizes.append(round(exact))
        steps += 1  # a factor next to 1 takes many steps to the next whole size
        if steps > _MOST_SIZES:
            raise ValueError(f"that is over {_MOST_SIZES} sizes; use a larger factor")
        exact = min(exact * factor, high)
    return tuple(sizes if sizes[-1] == high else [*sizes, high])


def parse_computes(text: str) -> tuple[Compute, ...]:
    """Compute per layer: durations and GEMM orders, "1ms,4ms" or "n=512"; as given, in order."""
    computes = tuple(_parse_compute(item) for item in split_list(text))
    if len({compute[1:] for compute in computes}) < len(computes):
        raise ValueError("the same compute is there twice; name each once")
    return computes


def _parse_compute(text: str) -> Compute:
    if text.startswith("n="):
        if not re.fullmatch(r"[1-9]\d{0,5}", text[2:], re.ASCII):
            raise ValueError("n= takes the order of a GEMM, such as n=512")
        return Compute(text, None, int(text[2:]))
    return Compute(text.replace(" ", ""), parse_duration(text), None)


def parse_iterations(text: str) -> IterationRange:
    """Iterations of a cell: LEAST:MOST or one number for exactly so many."""
    parts = text.split(":")
    if len(parts) > 2 or not all(re.fullmatch(r"\d+", p.strip(), re.ASCII) for p in parts):
        raise ValueError("it is LEAST:MOST or one number, such as 50:1000")
    least, most = int(parts[0]), int(parts[-1])
    if least < 1:
        raise ValueError("at least 1 iteration, such as 50:1000")
    if least > most:
        raise ValueError(f"the least comes first, such as {most}:{least}")
    return IterationRange(least, most)


def parse_budget(text: str) -> float:
    """A duration in seconds, or infinity for "none"."""
    if text.strip() == "none":
        return float("inf")
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or none") from None
