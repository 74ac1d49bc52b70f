"""The rows of exposure.csv from the records of a run. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import Any

from mpibench.analysis.exposure import Exposure, HidingRate, Point, exposure, hiding_rate
from mpibench.analysis.figures import put
from mpibench.analysis.statistics import Interval
from mpibench.analysis.verdict import CORE_SHARE
from mpibench.protocols import Cell, Record


@dataclass(frozen=True)
class SizeExposure:
    """A message size under a strategy, over all computes."""

    cell: Cell  # any of the size's cells
    progress: str
    curve: Exposure
    rate: HidingRate  # over all sizes under this strategy


def exposures(records: Sequence[Record]) -> tuple[SizeExposure, ...]:
    """Every message size under every strategy, by strategy and then size; those without any figure are left out.

    Rows in which a rank waited for a core are not used: their exposed time is not the collective's.
    """
    usable = [
        record for record in records
        if "overlap" in record.figures and not record.figures["cpu_wait_share"] > CORE_SHARE and record.cell.nbytes
    ]  # fmt: skip
    found: list[SizeExposure] = []
    for progress in dict.fromkeys(record.progress for record in records):
        mine = sorted((r for r in usable if r.progress == progress), key=lambda r: r.cell.nbytes)
        sizes = [list(group) for _, group in groupby(mine, key=lambda record: record.cell.nbytes)]
        curves = [_curve(size) for size in sizes]
        rate = hiding_rate([(s[0].cell.nbytes, c.hiding_compute) for s, c in zip(sizes, curves, strict=True)])
        found += [SizeExposure(s[0].cell, progress, curve, rate) for s, curve in zip(sizes, curves, strict=True)]
    return tuple(found)


def _curve(size: Sequence[Record]) -> Exposure:
    points = [Point(record.figures["compute_s"], _interval(record.figures, "exposed")) for record in size]
    first = min(size, key=lambda record: record.figures["compute_s"]).figures
    return exposure(points, _interval(first, "nonblocking"), first["allreduce_s"])


def _interval(figures: Mapping[str, float], name: str) -> Interval:
    return Interval(figures[f"{name}_s"], figures[f"{name}_lo_s"], figures[f"{name}_hi_s"])


def exposure_row(size: SizeExposure, emulated: bool) -> dict[str, Any]:
    """A row of exposure.csv by column name."""
    row: dict[str, Any] = {
        "nbytes": size.cell.nbytes, "collective": size.cell.collective, "kernel": size.cell.kernel,
        "progress": size.progress, "hiding_rate_Bps": size.rate.rate.median,
        "hiding_latency_s": size.rate.latency.median,
    }  # fmt: skip
    put(row, "hiding_compute", size.curve.hiding_compute, "_s")
    put(row, "efficiency", size.curve.efficiency)
    put(row, "floor", size.curve.floor, "_s")
    rate, latency = size.rate.rate, size.rate.latency
    spread = ""
    if not isnan(rate.median):
        spread = (
            f"95 %: hiding rate {rate.lo:.4g} to {rate.hi:.4g} B/s, "
            f"hiding latency {latency.lo:.4g} to {latency.hi:.4g} s"
        )
    notes = (size.curve.note, spread, "emulated accelerator" if emulated else "")
    return row | {"note": "; ".join(filter(None, notes))}
