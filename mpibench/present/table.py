"""The results on stdout: a table of cases, the crossovers in sentences, and where the files lie."""

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpibench.analysis.verdict import slow_blocking
from mpibench.engine.results import Crossover, Facts, Results
from mpibench.engine.tuning import Tuning
from mpibench.present.exposures import print_exposures, rates, size_text
from mpibench.present.tuning import print_tuning, tuned
from mpibench.protocols import Record
from mpibench.units import approximate_bytes, format_bytes, format_duration

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH = 200  # a launcher's pipe or pty does not tell the terminal's: nothing is cut, the table is as wide as it is
_TEXT_WIDTH = 110
_VERDICT_STYLES = {
    "hidden": "green", "comm-bound": "cyan", "partly-hidden": "cyan", "unresolved": "yellow", "skipped": "dim",
    "wrong-data": "bold red", "no-progress": "red", "blocking-start": "red", "contended": "red",
}  # fmt: skip
_LEGEND = (
    "B blocking, N non-blocking alone, C compute alone, T both overlapped: medians ± half the 95 % interval. "
    "overlap = (N + C - T) / min(N, C): 1 all hidden, 0 serial, below 0 worse; exposed = T - C, what the step still "
    "pays. Every interval is in the CSV."
)
_REFINED = "*: measured to know the cover or hidden point more exactly."
_UNSTABLE = (
    "(unstable): iterations depend on each other there, or visits differ: the intervals may be too narrow; a quieter "
    "machine or a longer --budget helps."
)


def print_results(results: Results, facts: Facts, tuning: Tuning | None, color: bool) -> None:
    """Print the table, its legend, the curve of the poll interval, and what it all means."""
    from rich.console import Console
    from rich.table import Table

    console = Console(
        file=sys.stdout, force_terminal=color, no_color=not color, width=_WIDTH,
        highlight=False, emoji=False, markup=False,
    )  # fmt: skip
    for crossover in results.crossovers[:: len({c.progress for c in results.crossovers})]:
        mine = [r for r in results.records if r.cell.compute == crossover.cells[0].compute]
        emulated = " (emulated accelerator)" if facts.emulated else ""
        title = (
            f"{mine[0].cell.collective} on {facts.ranks} ranks under {mine[0].cell.compute} of "
            f"{mine[0].cell.kernel}{emulated}"
        )
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold"
        )
        for name in ("size", "progress", "B", "N", "C", "T", "overlap [95 %]", "exposed [95 %]", "verdict"):
            table.add_column(name, justify="left" if name in ("progress", "verdict") else "right", no_wrap=True)
        for record in mine:
            table.add_row(*_row(record), _verdict(record))
        console.print(table)
        console.print()
    console.print(textwrap.fill(_LEGEND, _TEXT_WIDTH))
    if any(record.cell.refined for record in results.records):
        console.print(_REFINED)
    if any(record.status == "unstable" for record in results.records):
        console.print(textwrap.fill(_UNSTABLE, _TEXT_WIDTH))
    print_exposures(console, results)
    if tuning:
        print_tuning(console, tuning)
    told = tuned(tuning) if tuning else ()
    for sentence in (*sentences(results), *told, *rates(results), *_slow_blocking(results)):
        console.print(textwrap.fill(f"* {sentence}", _TEXT_WIDTH, subsequent_indent="  "))


def _verdict(record: Record) -> "Text":
    from rich.text import Text

    doubt = " (unstable)" if record.status == "unstable" else ""
    return Text(record.verdict + doubt, style=_VERDICT_STYLES.get(record.verdict, ""))


def _row(record: Record) -> Iterator[str]:
    figures = record.figures
    yield size_text(record.cell)
    yield record.progress
    for name in ("allreduce", "nonblocking", "compute", "overlapped"):
        yield (
            _time(figures[f"{name}_s"], figures[f"{name}_lo_s"], figures[f"{name}_hi_s"])
            if "overlap" in figures
            else "-"
        )
    if "overlap" not in figures:
        yield from ("-", "-")
    else:
        yield ratio_with_interval(figures, "overlap")
        lo, hi = (format_duration(figures[f"exposed_{end}_s"]) for end in ("lo", "hi"))
        yield f"{format_duration(figures['exposed_s'])} [{lo}, {hi}]"


def ratio_with_interval(figures: Mapping[str, float], name: str) -> str:
    """A ratio and its 95 % interval: 0.74 [0.71, 0.78]; question marks where there is none."""
    lo, hi = (figures[f"{name}_{end}"] for end in ("lo", "hi"))
    return f"{figures[name]:.2f} " + (f"[{lo:.2f}, {hi:.2f}]" if lo == lo else "[?, ?]")


def _time(median: float, lo: float, hi: float) -> str:
    spread = (hi - lo) / 2 / median if median else float("nan")
    share = "?" if spread != spread else ">100%" if spread > 1 else f"{spread:.0%}"
    return f"{format_duration(median)} ±{share}"


def sentences(results: Results) -> Iterator[str]:
    """What the results mean, a sentence for each compute and strategy, with the commonest reason and advice."""
    for crossover in results.crossovers:
        records = [
            record for record in results.records
            if record.progress == crossover.progress and record.cell.compute == crossover.cells[0].compute
        ]  # fmt: skip
        yield f"{crossover.cells[0].compute}, {crossover.progress}: {_meaning(crossover)}. {_reason(records)}".strip()


def _meaning(crossover: Crossover) -> str:
    """The cover and the hidden point in words."""
    cover, hidden = crossover.cover, crossover.hidden
    top = approximate_bytes(cover.nbytes or 0)
    covered = {
        "found": f"compute covers messages up to {_interval(cover.nbytes, cover.lo, cover.hi)}",
        "at-switch": f"compute covers messages up to {top}",
        "beyond": f"compute covers messages up to {top}, the largest measured",
        "never": "compute covers none of the messages that could be judged",
        "unresolved": "whether compute covers the messages is unresolved",
    }[cover.status]
    whole = f"hides them up to {format_bytes(hidden.nbytes or 0)}"
    hides = {
        "found": whole + (f" (exposed from {format_bytes(hidden.hi)})" if hidden.hi else ""),
        "beyond": whole + ", the largest measured",
        "never": "hides none of them",
        "unresolved": whole + " at least"
        if hidden.nbytes
        else "it is seen to hide none"
        if hidden.note
        else "what it hides is unresolved",
    }[hidden.status]
    note = f" ({hidden.note})" if hidden.note else ""
    cover_note = f" ({cover.note})" if cover.note else ""
    return f"{covered}{cover_note}; {hides}{note}"


def _slow_blocking(results: Results) -> Iterator[str]:
    """Where the blocking call is slower than the non-blocking one by itself, which no overlap explains."""
    slow = {r.cell.nbytes: r for r in results.records if "overlap" in r.figures and slow_blocking(r.figures)}
    if slow:
        penalties = sorted(record.figures["nonblocking_penalty"] for record in slow.values())
        sizes = ", ".join(size_text(record.cell) for _, record in sorted(slow.items()))
        yield (
            f"your blocking call is the slow one at {sizes}: N is {_range(penalties)} B. Try: "
            "the non-blocking call and Wait in its place, or another algorithm of the library's for the blocking one."
        )


def _range(ascending: Sequence[float]) -> str:
    ends = list(dict.fromkeys(f"{value:.2f}" for value in (ascending[0], ascending[-1])))
    return " to ".join(ends)


def _interval(value: float | None, lo: float | None, hi: float | None) -> str:
    ends = [approximate_bytes(end) if end is not None else "?" for end in (lo, hi)]
    return f"{approximate_bytes(value or 0)} [{ends[0]}, {ends[1]}]"


def _reason(records: Sequence[Record]) -> str:
    """The commonest verdict other than hidden, with the evidence and the advice of its largest message."""
    words = [record.verdict for record in records if record.verdict != "hidden"]
    if not words:
        return ""
    commonest = max(dict.fromkeys(words), key=words.count)
    example = [record for record in records if record.verdict == commonest][-1]
    advice = f"; try: {example.advice}" if example.advice else ""
    size = size_text(example.cell)
    return f"{commonest} in {words.count(commonest)} of {len(records)} rows, at {size}: {example.evidence}{advice}."


def closing_lines(results: Results, path: Path, ranks: int, module: str, unfinished: int, more: str) -> Iterator[str]:
    """The last lines: the files, and the exact lines to go on or to look further.

    Args:
        results: what was measured.
        path: of the run.
        ranks: of the communicator.
        module: the benchmark.
        unfinished: cells that more iterations would bring nearer to the asked precision.
        more: flags that going on needs, such as more iterations; empty for none.
    """
    if unfinished:
        cells = len({record.cell.index for record in results.records})
        yield f"{unfinished} of {cells} cells did not reach the asked precision; to go on:"
        yield f"  mpirun -n {ranks} python -m {module} --resume {shlex.quote(str(path))}{more}"
    measured = [record for record in results.records if "overlap" in record.figures]
    if measured:
        example = max(measured, key=lambda record: record.figures["exposed_s"])
        yield "to see why one case reads as it does:"
        yield f"  python -m {module} --resume {shlex.quote(str(path))} --explain {example.case}"
    yield f"files: {path / 'overlap.csv'}, crossover.csv, exposure.csv, samples.csv, ranks.csv, run.json"
