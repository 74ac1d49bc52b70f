"""Whether launches measured the same thing, and what differs around them.

Values are compared as text: one program wrote them all.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from mpibench.errors import UsageError
from mpibench.launches.record import IDENTITY, STEPS, LaunchRecord

_SETTINGS = ("kernel_dtype",)  # settings of run.json that say what was measured and are no column
MUST_AGREE = (*IDENTITY, *_SETTINGS)
"""What must be the same for times to be comparable: the words of `--allow`."""
_NOT_TOLD = {"output", "resume", "steps_from", "quiet", "color", "explain", "config", "list", "version", "dry_run"}


def disagreements(launches: Sequence[LaunchRecord]) -> Iterator[tuple[str, str, LaunchRecord, str, LaunchRecord, str]]:
    """Where launches disagree in what must agree: word, case, a launch and its value, another and its value.

    Each is told against the first launch that has the case.
    """
    for word in _SETTINGS:
        values = [str(launch.run["settings"].get(word, "")) for launch in launches]
        for launch, value in zip(launches, values, strict=True):
            if value != values[0]:
                yield word, "", launch, value, launches[0], values[0]
    first: dict[str, LaunchRecord] = {}
    for launch in launches:
        for case, row in launch.rows.items():
            reference = first.setdefault(case, launch)
            for word in IDENTITY:
                other = reference.rows[case][word]
                if row[word] != other and not (word == "poll_interval_s" and _tuned(launch) and _tuned(reference)):
                    yield word, case, launch, row[word], reference, other


def _tuned(launch: LaunchRecord) -> bool:
    """Whether the launch itself searched for its poll interval: then that is part of what is compared."""
    return bool(launch.run["settings"].get("poll_interval") == "tune")


def refuse_incomparable(launches: Sequence[LaunchRecord], allowed: Sequence[str]) -> dict[str, str]:
    """What disagrees although it must not, but was allowed: word to both values in words.

    Raises:
        UsageError: for the first disagreement that is not allowed; names file, column and both values.
    """
    found: dict[str, str] = {}
    for word, case, launch, value, reference, other in disagreements(launches):
        if word not in allowed:
            file = "run.json" if word in _SETTINGS else "overlap.csv"
            where = f" in case {case}" if case else ""
            raise UsageError(
                f"{launch.path / file}: {word} is {value or 'empty'}{where}, {other or 'empty'} in "
                f"{reference.path / file}: {_remedy(word, reference)}"
            )
        found.setdefault(word, f"{other or 'empty'} / {value or 'empty'}")
    return found


def _remedy(word: str, reference: LaunchRecord) -> str:
    if word == STEPS:
        return (
            f"each launch calibrated its own; measure anew with --steps-from {reference.path} (launch/repeat does so), "
            f"or --allow {STEPS} to compare B, N and the time of a step"
        )
    return f"not comparable; --allow {word} if that is what you want to compare"


def circumstances(launch: LaunchRecord) -> dict[str, str]:
    """What surrounded a launch, as text by name: versions, variables, hosts, cores, settings.

    Left out is what names a job and changes nothing: Slurm's variables, process numbers, the run's directory.
    """
    run = launch.run
    hosts = run.get("hosts", ())
    settings = {name: text for name, text in run["settings"].items() if name not in _NOT_TOLD}
    return {
        **{f"version of {name}": str(text) for name, text in run.get("versions", {}).items()},
        **{name: str(text) for name, text in run.get("environment", {}).items() if not name.startswith("SLURM_")},
        "hosts": ", ".join(dict.fromkeys(host["host"] for host in hosts)),
        "cores by rank": str([host["cores"] for host in hosts]),
        "GPUs": ", ".join(dict.fromkeys(filter(None, run.get("gpus", ())))),
        **{f"--{name.replace('_', '-')}": str(text) for name, text in settings.items()},
    }


def contrasts(base: Sequence[LaunchRecord], new: Sequence[LaunchRecord]) -> tuple[list[str], list[str]]:
    """In what all launches of BASE differ from all of NEW; and in what launches of one side differ: in words."""
    around = [[circumstances(launch) for launch in side] for side in (base, new)]
    between, within = [], []
    for name in dict.fromkeys(chain.from_iterable(chain.from_iterable(around))):
        values = [list(dict.fromkeys(each.get(name, "") or "unset" for each in side)) for side in around]
        told = f"{name}: {_few(values[0])} / {_few(values[1])}"
        if max(map(len, values)) > 1:
            within.append(told)
        elif values[0] != values[1]:
            between.append(told)
    return between, within


def _few(values: Sequence[str]) -> str:
    return " | ".join(values[:3]) + (f" | and {len(values) - 3} more" if len(values) > 3 else "")
