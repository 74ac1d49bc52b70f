"""mpibench.units: what people write, what it means, and what is refused with what would be right."""

import contextlib
import math
import re
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpibench.units import (
    Compute,
    IterationRange,
    approximate_bytes,
    format_bytes,
    format_duration,
    parse_budget,
    parse_bytes,
    parse_computes,
    parse_count,
    parse_duration,
    parse_iterations,
    parse_share,
    parse_sizes,
    split_list,
    three_digits,
)

K, M, G = 1 << 10, 1 << 20, 1 << 30

ARABIC_FIVE, FULLWIDTH_FIVE, SUPERSCRIPT_TWO, KELVIN = "\u0665", "\uff15", "\u00b2", "\u212a"
# What Python's int() and float() take, or nearly, and no parser may.
NUMBERLIKE = [
    *("", " ", "abc", "-5", "+5", "--5", "1_000", "inf", "-inf", "nan", "infinity", "1e6", "1e3x", "1E3", "0x10", "1."),
    *(".", "1,5", "1.2.3", "1 2", "None", "True", ARABIC_FIVE, FULLWIDTH_FIVE, SUPERSCRIPT_TWO, f"1{ARABIC_FIVE}"),
]
HUGE = "9" * 400  # more than a float holds


@pytest.fixture
def impatient() -> Iterator[None]:
    """Fails a test that does not come back within seconds."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError("still busy after 5 s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refuses(parse: Callable[[str], Any], text: str, hint: str) -> None:
    """One line, and an example or a limit to go by."""
    with pytest.raises(ValueError, match=hint) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 200


# Bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1", 1),
        ("3", 3),
        ("100000", 100_000),
        ("007", 7),
        ("1K", K),
        ("1k", K),
        ("1.5K", 1536),
        (".5K", 512),
        ("1KiB", K),
        ("1KB", K),
        ("1kib", K),
        ("64 KiB", 64 * K),
        ("1.5MiB", 3 * M // 2),
        ("16M", 16 * M),
        ("2G", 2 * G),
        ("3GB", 3 * G),
        ("2147483648", 1 << 31),
        ("12B", 12),
    ],
)
def test_bytes_as_people_write_them(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes
    assert parse_sizes(text) == (nbytes,)


@pytest.mark.parametrize(
    "text", [*NUMBERLIKE, "1T", "1KK", "K", "B", "1Ki", "1iB", "5IB", f"1{KELVIN}", "1K:", "8:4", "5%", "1ms"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    refuses(parse_bytes, text, "number of bytes with an optional K, M or G, such as 64K")


def test_a_size_with_blanks_around_it_is_refused() -> None:
    refuses(parse_bytes, " 1K ", "such as 64K")  # split_list has taken those around the items of a list


@pytest.mark.parametrize("text", ["0.5", "1.5", "1.0001K", "0.3M"])
def test_a_part_of_a_byte_is_refused(text: str) -> None:
    refuses(parse_bytes, text, "not a whole number of bytes")


@pytest.mark.parametrize("text", [HUGE, HUGE + "G", "99999999999G", str(1 << 63)])
def test_a_size_that_no_count_of_bytes_holds_is_refused(text: str) -> None:
    refuses(parse_bytes, text, "size")


@given(st.integers(0, (1 << 63) - 1))
def test_bytes_come_back(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == nbytes


@given(st.integers(0, 1 << 20), st.sampled_from([K, M, G]))
def test_whole_multiples_come_back_with_their_suffix(number: int, factor: int) -> None:
    text = format_bytes(number * factor)
    assert parse_bytes(text) == number * factor
    assert number == 0 or text[-1] in "KMG"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0"), (1, "1"), (1023, "1023"), (65536, "64K"), (100_000, "100000"), (1536, "1536"), (G, "1G")],
)
def test_the_shortest_exact_name(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(0, 1 << 32), st.sampled_from(["", "K", "M", "G"]), st.sampled_from(["", "B", "iB"]))
def test_all_spellings_mean_the_same(number: int, prefix: str, tail: str) -> None:
    if prefix or tail != "iB":
        assert parse_bytes(f"{number}{prefix}{tail}") == number * {"": 1, "K": K, "M": M, "G": G}[prefix]


@given(st.text("0159.KkMGiB xe-+_:,\u0665\uff15", max_size=8))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_bytes(text) >= 0


# Lists and ranges of sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("0,1,3", (0, 1, 3)),
        ("4K,100000,1M", (4 * K, 100_000, M)),
        ("1M,4K", (4 * K, M)),
        ("0,1K", (0, K)),
        ("1K:16K", (K, 2 * K, 4 * K, 8 * K, 16 * K)),
        ("1K:16K:x4", (K, 4 * K, 16 * K)),
        ("1K:100000:x10", (K, 10 * K, 100_000)),
        ("1K:5K", (K, 2 * K, 4 * K, 5 * K)),
        ("1:4:x1.5", (1, 2, 3, 4)),
        ("8:9:x1.01", (8, 9)),
        ("1K:1K", (K,)),
        ("1G:4G", (G, 2 * G, 4 * G)),
    ],
)
def test_lists_and_ranges(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no empty item"),
        (",", "no empty item"),
        ("1K,", "no empty item"),
        (",1K", "no empty item"),
        ("1K,,2K", "no empty item"),
        ("1K, ,2K", "no empty item"),
        ("1K,1K", "1K is there twice"),
        ("1K,1024", "twice"),
        ("abc", "such as 64K"),
        ("1K,abc", "such as 64K"),
        ("1e3x", "such as 64K"),
        ("-5", "such as 64K"),
        ("1K:", "LO:HI or LO:HI:xF, such as 1K:16M"),
        (":1K", "LO:HI"),
        (":", "LO:HI"),
        ("1K:2K:", "LO:HI"),
        ("1:2:3:4", "LO:HI"),
        ("1K:4K,8K", "LO:HI"),
        ("8:4", "upwards, such as 4:8"),
        ("1M:1K", "upwards, such as 1K:1M"),
        ("0:1K", "0 belongs in a list, such as 0,1K"),
        ("-5:4", "such as 64K"),
        ("1:abc", "such as 64K"),
        ("1K:4K:2", "x and a factor over 1, such as x4"),
        ("1K:4K:x1", "factor over 1"),
        ("1K:4K:x0", "factor over 1"),
        ("1K:4K:x0.5", "factor over 1"),
        ("1K:4K:x-2", "factor over 1"),
        ("1K:4K:x", "factor over 1"),
        ("1K:4K:xinf", "factor over 1"),
        ("1K:4K:x1e2", "factor over 1"),
        ("1K:4K:x2K", "factor over 1"),
        ("1:1G:x1.0005", "over 10000 sizes; use a larger factor"),
        *((text, "such as|no empty item") for text in NUMBERLIKE if "," not in text),
    ],
)
def test_what_is_no_list_or_range_is_refused(text: str, hint: str) -> None:
    refuses(parse_sizes, text, hint)


@pytest.mark.usefixtures("impatient")
def test_a_factor_next_to_one_is_refused_at_once() -> None:
    refuses(parse_sizes, "1:16M:x1.000000001", "larger factor")


def test_a_factor_past_the_range_leaves_its_ends() -> None:
    assert parse_sizes("1K:16M:x99999999") == (K, 16 * M)
    assert parse_sizes(f"1K:16M:x{HUGE}") == (K, 16 * M)


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(1100, 9000).map(lambda i: i / 1000))
def test_a_range_ascends_from_end_to_end_in_steps_of_its_factor(low: int, span: int, factor: float) -> None:
    sizes = parse_sizes(f"{low}:{low + span}:x{factor}")
    assert (sizes[0], sizes[-1]) == (low, low + span)
    for smaller, larger in pairwise(sizes):
        assert smaller < larger <= max(smaller * factor * (1 + 1e-9) + factor, smaller + 1)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20, unique=True))
def test_a_list_of_sizes_comes_back_sorted(sizes: list[int]) -> None:
    assert parse_sizes(",".join(map(format_bytes, sizes))) == tuple(sorted(sizes))


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50us", 50e-6), ("1.5ms", 1.5e-3), ("40s", 40.0), ("1ns", 1e-9), (".5s", 0.5), ("1 ms", 1e-3), ("0001s", 1.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5", "needs its unit .*such as 5ms"),
        ("1.5", "needs its unit"),
        ("0", "unit"),
        ("0s", "more than zero"),
        ("0.0ms", "more than zero"),
        ("fast", "number and its unit"),
        ("-5ms", "number and its unit"),
        ("1m", "number and its unit"),
        ("1h", "number and its unit"),
        ("1MS", "number and its unit"),
        ("1 000us", "number and its unit"),
        ("ms", "number and its unit"),
        (f"{ARABIC_FIVE}ms", "number and its unit"),
        ("1\u00b5s", "number and its unit"),
        *((text + "s", "number and its unit") for text in NUMBERLIKE),
        *((text, "unit") for text in NUMBERLIKE),
        (HUGE + "s", "duration"),
    ],
)
def test_what_is_no_duration_is_refused(text: str, hint: str) -> None:
    refuses(parse_duration, text, hint)


@given(st.integers(1, 10**15), st.sampled_from(["ns", "us", "ms", "s"]))
def test_durations_keep_their_unit(number: int, unit: str) -> None:
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * scale, rel=1e-12)


@given(st.floats(1e-9, 9.99e5))
def test_a_formatted_duration_is_right_to_three_digits_and_reads_back(seconds: float) -> None:
    text = format_duration(seconds)
    assert parse_duration(text) == pytest.approx(seconds, rel=0.0051, abs=0.51e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.23 ms"),
        (0.0, "0 ns"),
        (12e-9, "12 ns"),
        (999.4e-9, "999 ns"),
        (999.6e-9, "1.00 us"),
        (99.94e-6, "99.9 us"),
        (0.99951, "1.00 s"),
        (-0.5, "-500 ms"),
        (1234.0, "1234 s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_budget_is_a_duration_or_none() -> None:
    assert parse_budget("40s") == 40.0
    assert parse_budget("none") == math.inf


@pytest.mark.parametrize("text", ["40", "0s", "inf", "None", "", "forever"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    refuses(parse_budget, text, ", or none$")


# Computes


def test_computes_are_durations_and_orders_as_given() -> None:
    assert parse_computes("4ms,n=512,100us") == (
        Compute("4ms", 4e-3, None),
        Compute("n=512", None, 512),
        Compute("100us", pytest.approx(1e-4), None),
    )
    assert parse_computes("1 ms")[0].label == "1ms"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no empty item"),
        ("1ms,", "no empty item"),
        ("1ms,1ms", "1ms is there twice"),
        ("0", "unit"),
        ("5", "such as 5ms"),
        ("fast", "such as 1ms"),
        ("-1ms", "such as 1ms"),
        ("n=", "such as n=512"),
        ("n=0", "such as n=512"),
        ("n=-3", "such as n=512"),
        ("n=1.5", "such as n=512"),
        ("n=5K", "such as n=512"),
        ("n=1_000", "such as n=512"),
        (f"n={ARABIC_FIVE}", "such as n=512"),
        ("n=99999999", "such as n=512"),
        ("m=5", "such as 1ms"),
    ],
)
def test_what_is_no_compute_is_refused(text: str, hint: str) -> None:
    refuses(parse_computes, text, hint)


# Shares


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("99.9%", 0.999), (".5%", 0.005), ("12.5 %", 0.125)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    "text", [*NUMBERLIKE, "0%", "0", "0.0%", "100%", "1", "5", "101%", "-5%", "%", "5%%", "1e-2", f"{ARABIC_FIVE}%"]
)
def test_what_is_no_share_is_refused(text: str) -> None:
    refuses(parse_share, text, "between 0 % and 100 %, both excluded, such as 5%")


# Iterations and counts


@pytest.mark.parametrize(("text", "wanted"), [("50:1000", (50, 1000)), ("7", (7, 7)), ("1:1", (1, 1))])
def test_iterations(text: str, wanted: tuple[int, int]) -> None:
    assert parse_iterations(text) == IterationRange(*wanted)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10:5", "the least comes first, such as 5:10"),
        ("0", "at least 1"),
        ("0:5", "at least 1"),
        ("5:", "LEAST:MOST"),
        (":5", "LEAST:MOST"),
        ("1:2:3", "LEAST:MOST"),
        ("1.5", "LEAST:MOST"),
        ("5K", "LEAST:MOST"),
        *((text, "LEAST:MOST") for text in NUMBERLIKE),
    ],
)
def test_what_is_no_iteration_range_is_refused(text: str, hint: str) -> None:
    refuses(parse_iterations, text, hint)


@given(st.integers(0, 10**18))
def test_counts_come_back(number: int) -> None:
    assert parse_count(str(number)) == number


@pytest.mark.parametrize("text", [*NUMBERLIKE, "1.0", "5K"])
def test_what_is_no_count_is_refused(text: str) -> None:
    refuses(parse_count, text, "whole number, such as 0")


# Lists of words


def test_a_list_keeps_its_order_and_loses_its_blanks() -> None:
    assert split_list("poll, none") == ["poll", "none"]


@pytest.mark.parametrize(
    ("text", "hint"), [("", "no empty"), ("a,,b", "no empty"), ("a,", "no empty"), ("a,b,a", "a is there twice")]
)
def test_what_is_no_list_is_refused(text: str, hint: str) -> None:
    refuses(split_list, text, hint)


# For people


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (512, "512 B"), (183_500.8, "179 KiB"), (1536, "1.50 KiB"), (16 * M, "16.0 MiB"), (3 * G, "3.00 GiB")],
)
def test_sizes_for_people(nbytes: float, text: str) -> None:
    assert approximate_bytes(nbytes) == text


@given(st.floats(0.01, 999.4))
def test_three_digits_are_three_digits(value: float) -> None:
    text = three_digits(value)
    assert float(text) == pytest.approx(value, rel=0.0051, abs=0.0051)
    assert re.fullmatch(r"\d\.\d\d|\d\d\.\d|\d\d\d", text)
