"""A comparison as text and as rows of a CSV file."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpibench.analysis.comparison import CANNOT_TELL, FASTER, MOST_LAUNCHES, SAME, SLOWER, Difference
from mpibench.launches.matching import Row
from mpibench.launches.record import DERIVED
from mpibench.units import format_duration

_WIDTH = 110
_HEAD = ("case", "figure", "BASE", "NEW", "NEW / BASE [95 %]", "answer", "overlap", "exposed")
_LEFT = (0, 1, 5)  # columns that are words
COLUMNS = (
    "case", "figure", "per_step", "base_launches", "new_launches", "base_s", "new_s", "base_sd", "new_sd", "ratio",
    "ratio_lo", "ratio_hi", "p", "answer", "launches_needed",
    *(f"{side}_{column}" for column in DERIVED for side in ("base", "new")), "note",
)  # fmt: skip
_LEGEND = (
    "B blocking, N non-blocking alone, C compute alone, T both overlapped: the geometric mean of the launches' medians "
    "± their standard deviation. overlap and exposed: BASE's -> NEW's, medians over launches, not tested."
)


def heading(base: int, new: int, between: Sequence[str], allowed: Mapping[str, str]) -> str:
    """What is compared, and what differs."""
    lines = [f"BASE: {_launches(base)}; NEW: {_launches(new)}"]
    lines += [f"they differ in {text} (BASE / NEW)" for text in between]
    lines += [f"compared although it differs: {word} {values}" for word, values in allowed.items()]
    if not between:
        lines.append("nothing that is recorded differs between them")
    return "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in lines) + "\n"


def table(rows: Sequence[Row]) -> str:
    """The rows, a line each."""
    cells = [_HEAD, *(tuple(_cells(row)) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = []
    for line in cells:
        padded = (
            f"{text:<{w}}" if i in _LEFT else f"{text:>{w}}"
            for i, (text, w) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> Iterator[str]:
    found = row.difference
    yield row.case
    yield f"{row.figure} per step" if row.per_step else row.figure
    if found is None:
        yield from ("-", "-", "-", "not compared", "", "")
        return
    yield _time(found.base_s, found.base_sd)
    yield _time(found.new_s, found.new_sd)
    yield f"{found.ratio:.3f} " + ("[?, ?]" if math.isnan(found.lo) else f"[{found.lo:.3f}, {found.hi:.3f}]")
    yield _answer(row)
    derived = row.derived or {}
    yield _pair(derived["overlap"], lambda value: f"{value:.2f}") if derived else ""
    yield _pair(derived["exposed_s"], format_duration) if derived else ""


def _time(seconds: float, sd: float) -> str:
    # Of logs: a share where it is small, and no longer one above 1.
    return f"{format_duration(seconds)} ±" + ("?" if math.isnan(sd) else ">100%" if sd > 1 else f"{sd:.1%}")


def _pair(values: tuple[float, float], text: Any) -> str:
    return " -> ".join("?" if math.isnan(value) else text(value) for value in values)


def _answer(row: Row) -> str:
    assert row.answer is not None
    if row.answer.word != CANNOT_TELL:
        return row.answer.word
    return f"{CANNOT_TELL}: {_wanted(row)}"


def _wanted(row: Row) -> str:
    """How many launches it would take, in words."""
    assert row.answer is not None
    assert row.difference is not None
    if math.isnan(row.difference.sd):
        return "spread not known"
    return f"{row.answer.launches} a side" if row.answer.launches else f"over {MOST_LAUNCHES} a side"


def closing(rows: Sequence[Row], unmatched: tuple[Sequence[str], Sequence[str]], tolerance: float) -> str:
    """The legend, what was not compared and why, and the result in sentences."""
    lines = [_LEGEND]
    for text in dict.fromkeys(row.note for row in rows if row.note):
        names = [f"{row.case} {row.figure}" for row in rows if row.note == text]
        lines.append(f"* {_some(names)}: {text}")
    for side, cases in zip(("BASE", "NEW"), unmatched, strict=True):
        if cases:
            lines.append(f"* only in {side}, not compared: {_some(cases)}")
    lines += [f"* {text}" for text in _sentences(rows, tolerance)]
    return "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in lines)


def _sentences(rows: Sequence[Row], tolerance: float) -> Iterator[str]:
    judged = [row for row in rows if row.answer]
    words = [row.answer.word for row in judged if row.answer]
    counts = ", ".join(f"{words.count(word)} {word}" for word in (SLOWER, FASTER, SAME, CANNOT_TELL) if word in words)
    yield f"{len(judged)} rows compared, tolerance {tolerance:.3g}: {counts or 'none'}"
    for word, extreme in ((SLOWER, max), (FASTER, min)):
        found = [row for row in judged if row.answer and row.answer.word == word]
        if found:
            worst = extreme(found, key=lambda row: row.difference.ratio if row.difference else 1.0)
            yield f"{word}: most in {worst.figure} of {worst.case}, {_times(worst.difference)}"
    wrong = [f"{row.case} {row.figure}" for row in rows if row.wrong]
    if wrong:
        yield f"NEW has wrong data, which no speed makes up for: {_some(wrong)}"
    unsure = [row for row in judged if row.answer and row.answer.word == CANNOT_TELL]
    if any(row.difference and math.isnan(row.difference.sd) for row in unsure):
        yield (
            "one launch a side tells nothing of how much launches differ: measure 5 a side (launch/repeat 5), or give "
            "--launch-sd if you know it"
        )
    wanted = [row.answer.launches for row in unsure if row.answer and row.answer.launches]
    if wanted:
        rows_told = f"all {len(wanted)} rows with a number" if len(wanted) > 1 else "the row with a number"
        yield (
            f"cannot tell: {max(wanted)} launches a side would tell {rows_told}, each with 80 % probability, if ratios "
            "and spreads are as seen"
        )


def _times(found: Difference | None) -> str:
    assert found is not None
    return f"{found.ratio:.3f} times BASE's [{found.lo:.3f}, {found.hi:.3f}]"


def _launches(count: int) -> str:
    return f"{count} launch" + ("es" if count > 1 else "")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def csv_row(row: Row) -> dict[str, Any]:
    """A row of the CSV file by column name. Spreads are of log medians, about a share."""
    found, answer = row.difference, row.answer
    line: dict[str, Any] = {"case": row.case, "figure": row.figure, "per_step": row.per_step, "note": row.note}
    if found is None or answer is None:
        return line
    for column, values in (row.derived or {}).items():
        line |= {f"base_{column}": values[0], f"new_{column}": values[1]}
    return line | {
        "base_launches": found.base_launches, "new_launches": found.new_launches, "base_s": found.base_s,
        "new_s": found.new_s, "base_sd": found.base_sd, "new_sd": found.new_sd, "ratio": found.ratio,
        "ratio_lo": found.lo, "ratio_hi": found.hi, "p": found.p, "answer": answer.word,
        "launches_needed": answer.launches,
    }  # fmt: skip
