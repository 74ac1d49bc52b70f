"""From a case's figures to one word, the sentence that gives the evidence, and what to try.

Pure rules over the figures and their intervals; the first that applies, in the order of RULES.
The table in docs/overlap.md lists them.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

from mpibench.analysis.crossover import EXPOSED, HIDDEN

SKIPPED, WRONG_DATA, UNRESOLVED_VERDICT = "skipped", "wrong-data", "unresolved"
NO_PROGRESS, BLOCKING_START, CONTENDED = "no-progress", "blocking-start", "contended"
HIDDEN_VERDICT, COMM_BOUND, PARTLY_HIDDEN = "hidden", "comm-bound", "partly-hidden"

CORE_SHARE = 0.05  # of a phase waiting for a core: from here on overlap cannot be told from time slices
_MOST = 0.5  # of N in one place: this is where the time is
_LITTLE = 0.5  # overlap surely below this: hardly anything is hidden
_SLOWED = 1.05  # compute slowdown that counts
SLOW_BLOCKING = 0.8  # of B: where N is surely less, another algorithm would serve the blocking call better
_UNCERTAIN = 0.5  # an overlap interval wider than this says nothing
_ANOTHER_INTERVAL = "another --poll-interval (tune finds the best), or "
_ADVICE = {
    "none": "progress the collective while computing (--progress poll), or ",
    "poll": _ANOTHER_INTERVAL,
}  # where something is hidden, but not all
WAITED_NOTE = "waited for a core"


class Verdict(NamedTuple):
    """What a row means."""

    word: str  # one of the words above
    evidence: str  # one sentence with its numbers
    advice: str  # what to try; empty where nothing needs trying
    note: str = ""  # for the note column


def judge(
    figures: Mapping[str, float],
    hidden_class: str,
    progress: str,
    others: Sequence[str],
    own_progress: str = "",
    tuned: bool = False,
) -> Verdict:
    """The verdict of a measured case.

    Args:
        figures: from `figures.case_figures`.
        hidden_class: from `crossover.classify`.
        progress: the case's strategy.
        others: the strategies measured beside it.
        own_progress: the setting that makes the library progress by itself, as NAME=VALUE; empty without one.
        tuned: whether the poll interval is the best of those tried.
    """
    if figures["cpu_wait_share"] > CORE_SHARE:
        return Verdict(
            UNRESOLVED_VERDICT,
            f"a rank waited for a core for {figures['cpu_wait_share']:.2f} of a phase's time: overlap cannot be told "
            "from time slices",
            "use at most as many ranks as cores (on two cores: mpirun -n 2), or an idle machine",
            WAITED_NOTE,
        )
    width = figures["overlap_hi"] - figures["overlap_lo"]
    vague = hidden_class != HIDDEN and not width <= _UNCERTAIN
    if hidden_class == EXPOSED and (figures["overlap_lo"] > 0 or figures["overlap_hi"] < _LITTLE):
        vague = False  # something is hidden and something exposed, or surely little is hidden
    if vague and isnan(width):  # exposed perhaps, but nobody knows by how much
        return Verdict(UNRESOLVED_VERDICT, "too few independent iterations for an interval of overlap",
                       "more iterations or budget, or a quieter machine", "too noisy")  # fmt: skip
    if vague:
        short = figures["nonblocking_s"] < 0.05 * figures["compute_s"]
        return Verdict(
            UNRESOLVED_VERDICT,
            f"overlap is only known to lie within {figures['overlap_lo']:.2f} to {figures['overlap_hi']:.2f}",
            "less compute, or a larger message: this one is short beside the compute" if short
            else "more iterations or budget, or a quieter machine",
            "too short" if short else "too noisy",
        )  # fmt: skip
    verdict = _decided(figures, hidden_class, progress, others)
    if tuned:
        verdict = verdict._replace(advice=verdict.advice.replace(_ANOTHER_INTERVAL, ""))
    if own_progress:
        joint = ";" if verdict.word in (CONTENDED, HIDDEN_VERDICT, COMM_BOUND) else ", although"
        told = f"{joint} the library was told to progress by itself ({own_progress})"
        return verdict._replace(evidence=verdict.evidence + told)
    return verdict


def _decided(figures: Mapping[str, float], hidden_class: str, progress: str, others: Sequence[str]) -> Verdict:
    """The verdict where the figures are clear enough to have one."""
    little = figures["overlap_hi"] < _LITTLE
    if little and figures["wait_share"] >= _MOST:
        advice = _advice_for_progress(figures, progress, others)
        return Verdict(NO_PROGRESS, f"{figures['wait_share']:.0%} of the collective's time was spent in Wait", advice)
    if little and figures["start_share"] >= _MOST:
        return Verdict(
            BLOCKING_START,
            f"{figures['start_share']:.0%} of the collective's time was spent in the call that starts it",
            "the library does its work in the start: another algorithm, or larger messages less often",
        )
    if figures["compute_slowdown"] > _SLOWED:
        added = (figures["compute_slowdown"] - 1) * figures["compute_s"]
        if 0 < _MOST * figures["exposed_s"] <= added:
            return Verdict(
                CONTENDED,
                f"the compute ran {figures['compute_slowdown'] - 1:.0%} slower while the collective was in flight",
                "the transfer takes cores or memory bandwidth from the compute: leave it a core, or bind differently",
            )
    if hidden_class == HIDDEN:
        return Verdict(HIDDEN_VERDICT, "the step pays at most 5 % of the blocking call's time", "")
    if figures["nonblocking_s"] > figures["compute_s"] and figures["overlap_lo"] > _LITTLE:
        rest = figures["nonblocking_s"] - figures["compute_s"]
        return Verdict(
            COMM_BOUND,
            f"progress was made (overlap {figures['overlap']:.2f}), but the collective outlasts the compute by "
            f"{rest / figures['compute_s']:.1f} times the compute",
            "more compute per message, smaller messages, or a faster network",
        )
    return Verdict(
        PARTLY_HIDDEN,
        f"{figures['exposed_share']:.0%} of the collective's time is still exposed",
        "slower than one after the other: keep the blocking call here" if figures["speedup_hi"] < 1
        else f"{_ADVICE.get(progress, '')}more compute per message",
    )  # fmt: skip


def _advice_for_progress(figures: Mapping[str, float], progress: str, others: Sequence[str]) -> str:
    """What to try where the collective did not move while the program computed."""
    if progress == "thread":
        return "a core for the helper thread: fewer ranks than cores; or --progress poll"
    if progress == "none":
        return "progress the collective while computing" + (
            "; compare the poll rows" if "poll" in others else ": --progress poll"
        )
    if figures["tests"] >= 1:
        return f"{_ANOTHER_INTERVAL}a library or a setting of it that progresses by itself"
    return (
        "progress the collective while computing: no test was made, for the compute does not last or cannot be split; "
        "a kernel of shorter steps"
    )


def slow_blocking(figures: Mapping[str, float]) -> str:
    """A remark where the blocking call itself is the slow one, N surely below 0.8 B; else empty."""
    if not figures["nonblocking_hi_s"] < SLOW_BLOCKING * figures["allreduce_lo_s"]:
        return ""
    return f"your blocking call is the slow one: N is {figures['nonblocking_penalty']:.2f} B"
