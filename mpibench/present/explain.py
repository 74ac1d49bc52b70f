"""One case as a picture in the terminal: T with its parts, under C and N, and the sentence that explains it."""

from collections.abc import Iterator, Mapping

from mpibench.engine.results import Facts
from mpibench.present.table import ratio_with_interval
from mpibench.protocols import Record
from mpibench.units import approximate_bytes, format_duration

_WIDTH = 64
_START, _COMPUTE, _TEST, _WAIT, _NONBLOCKING = "s", "#", "t", "w", "="


def picture(record: Record, facts: Facts) -> str:
    """The picture of a case as lines of text."""
    return "\n".join(_lines(record, facts))


def _lines(record: Record, facts: Facts) -> Iterator[str]:
    cell, figures = record.cell, record.figures
    emulated = " (emulated accelerator)" if facts.emulated else ""
    yield (
        f"{record.case}: {cell.collective} of {approximate_bytes(cell.nbytes)} on {facts.ranks} ranks under "
        f"{cell.compute} of {cell.kernel}{emulated}, progress {record.progress}"
    )
    if "overlap" not in figures:
        yield f"{record.verdict}: {record.evidence}"
        return
    longest = max(figures[f"{name}_s"] for name in ("compute", "nonblocking", "sequential", "overlapped"))
    scale = _WIDTH / longest
    test = figures["test_s"]
    compute = figures["during_s"] - test
    serial = _bar(scale, ("#", figures["compute_s"]), ("B", figures["sequential_s"] - figures["compute_s"]))
    yield _line("C", "compute", _bar(scale, (_COMPUTE, figures["compute_s"])), figures, "compute")
    yield _line("N", "collective", _bar(scale, (_NONBLOCKING, figures["nonblocking_s"])), figures, "nonblocking")
    yield _line("S", "one by one", serial, figures, "sequential")
    bar = _bar(scale, (_START, figures["start_s"]), (_COMPUTE, compute), (_TEST, test), (_WAIT, figures["wait_s"]))
    yield _line("T", "overlapped", bar, figures, "overlapped")
    parts = [("s start", figures["start_s"]), ("# compute", compute)]
    parts += [(f"t {figures['tests']:.0f} tests", test), ("w wait", figures["wait_s"])]
    yield "  T: " + "   ".join(f"{name} {format_duration(seconds)}" for name, seconds in parts)
    yield "     medians of the slowest rank's parts; tests are drawn together, though spread over the compute"
    yield (
        f"  overlap {ratio_with_interval(figures, 'overlap')}, exposed "
        f"{format_duration(figures['exposed_s'])} [{format_duration(figures['exposed_lo_s'])}, "
        f"{format_duration(figures['exposed_hi_s'])}], {figures['iterations']:.0f} iterations, {record.status}"
    )
    yield f"  {record.verdict}: {record.evidence}" + (f"; try: {record.advice}" if record.advice else "")
    for note in record.notes:
        yield f"  note: {note}"


def _bar(scale: float, *parts: tuple[str, float]) -> str:
    """Parts end to end; the ends are rounded, not the lengths, so that bars of equal time are equally long."""
    text, end = "", 0.0
    for letter, seconds in parts:
        end += max(0.0, seconds)
        text += letter * (round(end * scale) - len(text))
    return text


def _line(symbol: str, name: str, bar: str, figures: Mapping[str, float], key: str) -> str:
    median, lo, hi = (format_duration(figures[f"{key}{end}_s"]) for end in ("", "_lo", "_hi"))
    return f"  {symbol} {name:<11}|{bar:<{_WIDTH}}| {median} [{lo}, {hi}]"
