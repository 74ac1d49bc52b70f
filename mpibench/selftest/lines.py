"""The certificate's lines: a figure against its aim, folded over runs, as text, CSV and JSON. Pure."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np

from mpibench.selftest.checks import Aim
from mpibench.selftest.readings import Reading
from mpibench.units import format_duration

PASSED, FAILED, SKIPPED, TOLD = "passed", "failed", "skipped", "told"
COLUMNS = ("check", "figure", "where", "value", "lo", "hi", "aim", "result", "note")
_NOTHING = "nothing to read: ranks waited for a core, or iterations depend on each other"
_SECONDS = ", s"  # ends the name of a figure that is a time
_OF_RUNS = 0.95  # that must pass: intervals of 95 % miss one in twenty


@dataclass(frozen=True)
class Line:
    """A row of the certificate: a figure of a check, at the place where it is worst."""

    check: str
    figure: str
    where: str = ""  # message and strategy; empty for the whole run
    value: float = nan
    lo: float = nan  # 95 % interval; NaN where there is none
    hi: float = nan
    aim: str = ""  # what the value must be; empty where it is only told
    result: str = TOLD  # passed, failed, skipped or told
    note: str = ""  # why it failed or was skipped


def judge(check: str, aim: Aim, readings: Sequence[Reading]) -> Line:
    """The worst of the readings against what they must be; skipped without any."""
    if not readings:
        return Line(check, aim.name, aim=aim.text, result=SKIPPED, note=_NOTHING)

    def miss(reading: Reading) -> float:
        lo, hi = (reading.lo, reading.hi) if aim.holds else (reading.value, reading.value)
        return float("inf") if isnan(lo) else max(lo - aim.most, aim.least - hi)

    worst = max(readings, key=miss)
    missing = isnan(worst.lo) if aim.holds else isnan(worst.value)
    note = "there is none" if missing else ""
    return Line(check, aim.name, *worst, aim.text, PASSED if miss(worst) <= 0 else FAILED, note)


def fold(runs: Sequence[Line]) -> Line:
    """One line for the same figure of several runs: median, least and most; what the first failed said."""
    judged = [line for line in runs if line.result != SKIPPED]
    if 2 * len(judged) < len(runs):
        few = f"{len(runs) - len(judged)} of {len(runs)} runs could not be read"
        return replace(next(line for line in runs if line.result == SKIPPED), note=few)
    passed = sum(line.result == PASSED for line in judged)
    shown = next((line for line in judged if line.result == FAILED), judged[0])
    values = [line.value for line in judged if not isnan(line.value)] or [nan]
    told = f"passed in {passed} of {len(judged)} runs; median [least, most]"
    skipped = f"{len(runs) - len(judged)} more could not be read" if len(judged) < len(runs) else ""
    return replace(
        shown,
        value=float(np.median(values)),
        lo=float(np.min(values)),
        hi=float(np.max(values)),
        result=PASSED if passed >= _OF_RUNS * len(judged) else FAILED,
        note="; ".join(filter(None, [told, skipped, shown.note])),
    )


def table(lines: Sequence[Line], about: Mapping[str, str]) -> str:
    """The certificate for people: what is known of each check, and its figures below."""
    head = ("figure", "where", "value [interval]", "aim")
    body = [(line.figure.removesuffix(_SECONDS), line.where, _value(line), line.aim) for line in lines]
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]

    def aligned(row: Sequence[str], last: str) -> str:
        return "  " + "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)), last])

    shown, check = [aligned(head, "result")], ""
    for line, row in zip(lines, body, strict=True):
        if line.check != check:
            check = line.check
            shown.append(f"{check}: {about[check]}")
        shown.append(aligned(row, line.result + f" ({line.note})" * bool(line.note)))
    counts = [f"{sum(line.result == word for line in lines)} {word}" for word in (PASSED, FAILED, SKIPPED)]
    shown.append(f"figures: {', '.join(counts)}")
    if unread(lines):
        shown.append("What was skipped is not certified: run it on an idle machine, with a core for each rank.")
    return "\n".join(shown)


def _value(line: Line) -> str:
    if isnan(line.value):
        return "-"
    shown = format_duration if line.figure.endswith(_SECONDS) else "{:.3g}".format
    interval = "" if isnan(line.lo) else f" [{shown(line.lo)}, {shown(line.hi)}]"
    return f"{shown(line.value)}{interval}"


def as_csv(lines: Sequence[Line]) -> str:
    """certificate.csv; empty where there is no figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerow("" if value != value else f"{value:.9g}" if isinstance(value, float) else value
                        for value in asdict(line).values())  # fmt: skip
    return text.getvalue()


def as_json(lines: Sequence[Line], told: Mapping[str, Any]) -> str:
    """certificate.json: what is told of the machine, and the lines; null where there is no figure.

    `passed` is null where nothing failed and something could not be read.
    """
    rows = [{name: None if value != value else value for name, value in asdict(line).items()} for line in lines]
    passed = False if failed(lines) else None if unread(lines) else True
    return json.dumps({**told, "passed": passed, "lines": rows}, indent=2) + "\n"


def failed(lines: Sequence[Line]) -> bool:
    """Whether any check failed."""
    return any(line.result == FAILED for line in lines)


def unread(lines: Sequence[Line]) -> bool:
    """Whether a figure with an aim could not be read."""
    return any(line.result == SKIPPED for line in lines)
