"""Is NEW slower than BASE? Compares launches of mpibench.overlap, read from their run directories.

Rows are matched by case. The unit is the launch: a launch's median is one value, and launches differ more than
iterations do. B, N, C and T are tested; overlap, exposed and speedup are shown beside. A row is slower, faster,
the same, or it cannot be told, with the number of launches that it would take.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import mpibench
from mpibench import units
from mpibench.engine.launcher import Launch
from mpibench.errors import DONE, FINDING, INCONCLUSIVE, UsageError
from mpibench.launches.agreement import MUST_AGREE, contrasts, refuse_incomparable
from mpibench.options import build_parser, option, path, resolve, split_operands, switch
from mpibench.present.entry import command, say
from mpibench.registry import near_match

if TYPE_CHECKING:  # what only comparing needs is imported there: --help is quick
    import argparse

    from mpibench.launches.matching import Row

MODULE = "mpibench.compare"
_USAGE = f"python -m {MODULE} BASE... --to NEW... [options]"


def parse_words(text: str) -> tuple[str, ...]:
    """A list of what may differ; an empty text is none."""
    words = tuple(units.split_list(text)) if text else ()
    for word in words:
        if word not in MUST_AGREE:
            raise ValueError(f"{word}: {near_match(word, MUST_AGREE)}")
    return words


def parse_spread(text: str) -> float | None:
    """A share; an empty text is not known."""
    return units.parse_share(text) if text else None


@dataclasses.dataclass(frozen=True)
class Config:
    """The options of the comparison, with the only defaults."""

    tolerance: float = option("3%", units.parse_share, "ratios within 1 ± this are the same", "SHARE")
    launch_sd: float | None = option(
        "", parse_spread, "spread between launches (standard deviation, a share) of a side with one launch", "SHARE"
    )
    allow: tuple[str, ...] = option(
        "", parse_words, "compare although these columns differ, such as thread_level,ranks", "LIST"
    )
    csv: str = option("", path, "write the rows to a file as well", "FILE")
    version: bool = switch("print the version and stop")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return command(functools.partial(run, argv=sys.argv[1:] if argv is None else argv))


def run(launch: Launch, argv: Sequence[str]) -> int:
    """Parse, compare, print; the exit status."""
    parser = build_parser(Config, MODULE, __doc__ or "", _USAGE)
    parser.add_argument("--to", metavar="NEW", nargs="+", help="run directories of NEW; those of BASE stand before")
    given, base, new = read_sides(parser, argv)
    if "help" in given:
        return say(launch, parser.format_help())
    if given.get("version") == "true":
        return say(launch, f"mpibench {mpibench.__version__}")
    config = resolve(Config, given)
    if not base or not new:
        side, example = ("BASE", "BASE stands before --to") if not base else ("NEW", "NEW stands after --to")
        raise UsageError(f"{side}: no run directory is named; {example}, such as runs/base-* --to runs/new-*")
    refuse_unwritable(config.csv)
    return compare_runs(launch, config, [Path(name) for name in base], [Path(name) for name in new])


def read_sides(parser: "argparse.ArgumentParser", argv: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """The flags that were given, and the operands before and after `--to`.

    Raises:
        UsageError: for what the parser does not know, and for a second `--to`.
    """
    words: list[str] = []
    for word in argv:
        words += ["--to", word.removeprefix("--to=")] if word.startswith("--to=") else [word]
    if words.count("--to") > 1:
        raise UsageError("--to: it is there twice; all of NEW stands after one --to")
    place = words.index("--to") if "--to" in words else len(words)
    before, base = split_operands(parser, words[:place])
    after, new = split_operands(parser, words[place + 1 :])
    return {**before, **after}, base, new


def refuse_unwritable(file: str) -> None:
    """Raise UsageError now rather than after the comparison."""
    folder = Path(file).parent
    if file and (Path(file).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK)):
        reason = "a directory" if Path(file).is_dir() else "no directory" if not folder.is_dir() else "not writable"
        named = file if Path(file).is_dir() else folder
        raise UsageError(f"--csv {file}: {named} is {reason}; name a file in a directory that can be written")


def compare_runs(launch: Launch, config: Config, base_paths: Sequence[Path], new_paths: Sequence[Path]) -> int:
    """Read, refuse, compare and show; the exit status.

    Raises:
        UsageError: if a directory is no run, or the launches cannot be compared.
    """
    from mpibench.launches.matching import compare, unmatched
    from mpibench.launches.record import doubts, read_launch, refuse_repetition
    from mpibench.present import comparison

    base = [read_launch(path) for path in base_paths]
    new = [read_launch(path, "--to ") for path in new_paths]
    refuse_repetition([*base, *new])
    between, within = contrasts(base, new)
    allowed = refuse_incomparable([*base, *new], config.allow)
    rows = compare(base, new, config.tolerance, config.launch_sd)
    if not rows:
        raise UsageError(f"{new[0].table}: no case in common with {base[0].table}; compare runs of the same sizes")
    warnings = [*doubts([*base, *new]), *(f"launches of one side differ in {text}" for text in within)]
    for text in warnings:
        say(launch, f"mpibench: warning: {text}", sys.stderr)
    say(launch, comparison.heading(len(base), len(new), between, allowed))
    say(launch, comparison.table(rows))
    say(launch, comparison.closing(rows, unmatched(base, new), config.tolerance))
    if config.csv and launch.rank == 0:
        write_csv(Path(config.csv), rows)
        say(launch, f"file: {config.csv}")
    return status(rows)


def write_csv(file: Path, rows: "Sequence[Row]") -> None:
    """The rows as a table of their own.

    Raises:
        DiskFault: if the disk does not take it.
    """
    from mpibench.present import comparison
    from mpibench.records import RunDirectory

    RunDirectory(file.parent).write_table(file.name, comparison.COLUMNS, map(comparison.csv_row, rows))


def status(rows: "Sequence[Row]") -> int:
    """1: a row is slower, or NEW has wrong data; 4: nothing but cannot tell; else 0."""
    from mpibench.analysis.comparison import CANNOT_TELL, SLOWER

    words = {row.answer.word for row in rows if row.answer}
    if SLOWER in words or any(row.wrong for row in rows):
        return FINDING
    return DONE if words - {CANNOT_TELL} else INCONCLUSIVE


if __name__ == "__main__":
    sys.exit(main())
