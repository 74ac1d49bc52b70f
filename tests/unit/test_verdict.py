"""Every verdict of docs/overlap.md, and for each two neighbours of its table which of them comes first.

`skipped`, `wrong-data` and what was not measured are decided before: see test_results.py.
"""

import re
from typing import Any

import pytest

from mpibench.analysis.verdict import judge, slow_blocking

# C = 10, N = 5, B = 5: half of N is exposed. Nothing speaks for any verdict but the last.
PLAIN = {
    "nonblocking_s": 5.0, "compute_s": 10.0, "exposed_s": 2.5, "exposed_share": 0.5,
    "overlap": 0.5, "overlap_lo": 0.45, "overlap_hi": 0.55,
    "wait_share": 0.3, "start_share": 0.1, "compute_slowdown": 1.0, "cpu_wait_share": 0.0,
    "tests": 20.0, "speedup_hi": 1.3,
}  # fmt: skip
NAN = float("nan")
LITTLE = {"overlap": 0.1, "overlap_lo": 0.0, "overlap_hi": 0.2, "exposed_s": 4.5, "exposed_share": 0.9}
WAITED = {"cpu_wait_share": 0.06}
VAGUE = {"overlap_lo": 0.1, "overlap_hi": 0.9}
IN_WAIT, IN_START = {**LITTLE, "wait_share": 0.9}, {**LITTLE, "start_share": 0.9}
SLOWED = {"compute_slowdown": 1.2}  # 2 s of the 2.5 s exposed
LONG = {"nonblocking_s": 50.0, "overlap": 0.9, "overlap_lo": 0.8, "overlap_hi": 0.95, "exposed_s": 41.0}


def verdict(*changes: dict[str, float], size: str = "exposed", progress: str = "none", others: Any = ()) -> Any:
    figures = dict(PLAIN)
    for change in changes:
        figures |= change
    return judge(figures, size, progress, others)


def test_the_librarys_own_progress_is_named_as_evidence() -> None:
    for changes in (IN_WAIT, IN_START, LONG, {}):
        found = judge({**PLAIN, **changes}, "exposed", "none", (), "MPICH_ASYNC_PROGRESS=1")
        assert found.word == judge({**PLAIN, **changes}, "exposed", "none", ()).word
        assert "(MPICH_ASYNC_PROGRESS=1)" in found.evidence


def test_a_helper_thread_that_makes_no_progress_wants_a_core() -> None:
    assert "core for the helper thread" in verdict(IN_WAIT, {"tests": 0.0}, progress="thread").advice


def test_without_an_interval_the_evidence_says_so() -> None:
    found = verdict({"overlap_lo": NAN, "overlap_hi": NAN}, size="unresolved")
    assert (found.word, "nan" in found.evidence) == ("unresolved", False)


@pytest.mark.parametrize(("nonblocking_hi", "slow"), [(3.9, True), (4.1, False), (NAN, False)])
def test_a_blocking_call_that_is_the_slow_one_is_named(nonblocking_hi: float, slow: bool) -> None:
    figures = {"nonblocking_hi_s": nonblocking_hi, "allreduce_lo_s": 5.0, "nonblocking_penalty": 0.7}
    assert slow_blocking(figures) == ("your blocking call is the slow one: N is 0.70 B" if slow else "")


def word(*changes: dict[str, float], size: str = "exposed") -> str:
    return str(verdict(*changes, size=size).word)


@pytest.mark.parametrize(
    ("changes", "size", "wanted"),
    [
        (WAITED, "exposed", "unresolved"),
        (VAGUE, "unresolved", "unresolved"),
        (IN_WAIT, "exposed", "no-progress"),
        (IN_START, "exposed", "blocking-start"),
        (SLOWED, "exposed", "contended"),
        ({}, "hidden", "hidden"),
        (LONG, "exposed", "comm-bound"),
        ({}, "exposed", "partly-hidden"),
        ({}, "unresolved", "partly-hidden"),  # the interval of overlap is narrow enough to say so
    ],
)
def test_each_verdict(changes: dict[str, float], size: str, wanted: str) -> None:
    found = verdict(changes, size=size)
    assert found.word == wanted
    assert found.evidence
    assert bool(found.advice) == (wanted != "hidden")


# The first of each two neighbours wins where both apply.


def test_unresolved_comes_before_no_progress() -> None:
    assert word(IN_WAIT, WAITED) == "unresolved"
    assert word(IN_WAIT, {"overlap_lo": -0.4}, size="unresolved") == "unresolved"


def test_no_progress_comes_before_blocking_start() -> None:
    assert word(LITTLE, {"wait_share": 0.5, "start_share": 0.5}) == "no-progress"


def test_blocking_start_comes_before_contended() -> None:
    assert word(IN_START, {"compute_slowdown": 1.5}) == "blocking-start"


def test_contended_comes_before_hidden() -> None:
    # B = 40, N = 5: an exposed time of 1.5 is below 5 % of B and is what the compute was slowed by.
    exposed = {"exposed_s": 1.5, "exposed_share": 0.3, "overlap": 0.7, "overlap_lo": 0.65, "overlap_hi": 0.75}
    assert word(exposed, {"compute_slowdown": 1.15}, size="hidden") == "contended"


def test_hidden_comes_before_comm_bound() -> None:
    assert word(LONG, size="hidden") == "hidden"


def test_comm_bound_comes_before_partly_hidden() -> None:
    assert word(LONG, {"exposed_share": 0.8}) == "comm-bound"


# The limits of the rules.


@pytest.mark.parametrize(("share", "wanted"), [(0.05, "partly-hidden"), (0.0501, "unresolved")])
def test_waiting_for_a_core_counts_from_above_5_percent_of_a_phase(share: float, wanted: str) -> None:
    assert word({"cpu_wait_share": share}) == wanted


def test_unresolved_says_which() -> None:
    waited = verdict(WAITED)
    assert waited.note == "waited for a core"
    assert re.search(r"\b6 ?%|\b0\.06\b", waited.evidence)
    assert verdict(VAGUE, size="unresolved").note == "too noisy"
    assert verdict(VAGUE, {"nonblocking_s": 0.1}, size="unresolved").note == "too short"


@pytest.mark.parametrize(("lo", "wanted"), [(0.25, "partly-hidden"), (0.2, "unresolved"), (NAN, "unresolved")])
def test_an_interval_wider_than_half_says_nothing(lo: float, wanted: str) -> None:
    bounds = {"overlap_lo": lo, "overlap_hi": lo + 0.5 if lo > 0.2 else 0.75}
    assert word(bounds, size="unresolved") == wanted


@pytest.mark.parametrize("size", ["hidden", "exposed"])
def test_a_wide_interval_of_overlap_does_not_outdo_a_size_that_is_decided(size: str) -> None:
    assert word(VAGUE, size=size) != "unresolved"


@pytest.mark.parametrize("where", ["wait_share", "start_share"])
def test_half_of_n_in_one_place_and_overlap_surely_below_half(where: str) -> None:
    named = {"wait_share": "no-progress", "start_share": "blocking-start"}[where]
    assert word(LITTLE, {where: 0.5}) == named
    assert word(LITTLE, {where: 0.49}) == "partly-hidden"
    assert word(LITTLE, {where: 0.9, "overlap_hi": 0.5}) == "partly-hidden"


@pytest.mark.parametrize(
    ("slowdown", "exposed_s", "wanted"),
    [
        (1.05, 0.5, "partly-hidden"),  # not above 5 %
        (1.06, 1.2, "contended"),  # 0.6 of 1.2
        (1.06, 1.3, "partly-hidden"),
        (NAN, 0.5, "partly-hidden"),  # a kernel that leaves the host free
    ],
)
def test_contended_is_half_of_what_is_exposed(slowdown: float, exposed_s: float, wanted: str) -> None:
    assert word({"compute_slowdown": slowdown, "exposed_s": exposed_s}) == wanted


@pytest.mark.parametrize("exposed_s", [0.0, -0.5])
def test_what_is_not_exposed_is_not_contended(exposed_s: float) -> None:
    assert word({"compute_slowdown": 1.2, "exposed_s": exposed_s}, size="hidden") == "hidden"


def test_comm_bound_needs_progress_and_a_collective_that_outlasts_the_compute() -> None:
    assert word(LONG, {"overlap_lo": 0.5}) == "partly-hidden"
    assert word(LONG, {"nonblocking_s": 10.0}) == "partly-hidden"


def test_advice_against_no_progress_names_what_was_not_tried() -> None:
    assert "--progress poll" in verdict(IN_WAIT).advice
    assert "compare the poll rows" in verdict(IN_WAIT, others=("poll",)).advice
    assert "--poll-interval" in verdict(IN_WAIT, progress="poll").advice
    assert "no test was made" in verdict(IN_WAIT, {"tests": 0.0}, progress="poll").advice


def test_where_overlapping_costs_more_than_it_hides_the_advice_is_to_leave_it() -> None:
    worse = {**LITTLE, "overlap": -0.5, "overlap_lo": -0.6, "overlap_hi": -0.4}
    assert "keep the blocking call" in verdict(worse, {"speedup_hi": 0.98}).advice
    # Where N is shorter than B even an overlap below 0 may beat today's code.
    assert "keep the blocking call" not in verdict(worse, {"speedup_hi": 1.2}).advice


def test_exposed_by_nobody_knows_how_much_is_unresolved() -> None:
    vague = {"overlap_lo": NAN, "overlap_hi": NAN}
    assert verdict(vague, size="exposed").word == "unresolved"
    assert verdict(vague, size="hidden").word == "hidden"
    assert verdict({"overlap_lo": -0.2, "overlap_hi": 0.9}, size="exposed").word == "unresolved"
    assert verdict({"overlap_lo": 0.1, "overlap_hi": 0.9}, size="exposed").word == "partly-hidden"
    # Surely little is enough, where it is exposed for sure.
    assert verdict(IN_WAIT, {"overlap_lo": -0.6}, size="exposed").word == "no-progress"
    assert verdict(IN_WAIT, {"overlap_lo": -0.6}, size="unresolved").word == "unresolved"
