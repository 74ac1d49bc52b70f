"""From every rank's stamps to one time per phase.

On a common clock a phase lasts from the last rank's start to the last rank's end: the time from
when all could communicate until all were done. Ranks on one host share CLOCK_MONOTONIC; those of
several are compared (`offsets`). Where that does not tell enough, the slowest local duration is
used, which counts a late start of another rank as communication.
"""

import platform
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Spans(NamedTuple):
    """One time per iteration and phase, int64 nanoseconds, each of shape (iterations, phases)."""

    span: Any  # the phase's time
    skew: Any  # last start - first start; -1 without a common clock
    slowest: Any  # the rank that ended last (without a common clock: took longest)


def clock_identity() -> str:
    """Processes with the same identity read the same monotonic clock: one boot, one time namespace."""
    try:
        namespace = Path("/proc/self/ns/time").readlink()
    except OSError:
        namespace = Path()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = platform.node()
    return f"{boot} {namespace}"


def spans(begin: Any, end: Any, common: bool) -> Spans:
    """Combine stamps of shape (ranks, iterations, phases) over the ranks."""
    if common:
        last_begin = begin.max(axis=0)
        return Spans(end.max(axis=0) - last_begin, last_begin - begin.min(axis=0), end.argmax(axis=0))
    duration = end - begin
    return Spans(duration.max(axis=0), np.full(duration.shape[1:], -1), duration.argmax(axis=0))
