"""python -m mpibench.selftest: its command line. Starts neither MPI nor numpy for --help."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpibench import units
from mpibench.errors import DONE, SIGNALLED, DiskFault, MpibenchError, UsageError
from mpibench.options import near_flag

_FLAGS = ("--parity", "--list", "--checks", "--runs", "--output", "--csv", "--json", "--launcher", "--help")
_LEAST_PAIRS = 6  # fewer have no interval


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message.removeprefix("argument "))


def _parse_pairs(text: str) -> int:
    if not text.isdecimal() or int(text) < _LEAST_PAIRS:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least {_LEAST_PAIRS}, such as 40")
    return units.parse_count(text)


def _parse_runs(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1, such as 20")
    return units.parse_count(text)


def _parse_names(text: str) -> list[str]:
    try:
        return units.split_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; --list shows the checks") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mpibench.selftest",
        description="Shows on this machine how far mpibench can be trusted. Starts its own mpirun.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--parity", action="store_true", help="only mpibench's hot loops against the same MPI calls from C, in full"
    )
    parser.add_argument("--list", action="store_true", help="list the checks, a line each, and stop")
    parser.add_argument("--checks", metavar="LIST", type=_parse_names, default=[], help="only these checks")
    parser.add_argument("--runs", metavar="N", type=_parse_runs, help="of every check; shows how many pass")
    parser.add_argument(
        "--output", metavar="DIR", default="", help="write DIR/certificate.csv and .json (--parity: parity.csv), and "
        "keep the runs in DIR/runs"
    )  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", default="", help="write the certificate as CSV")
    parser.add_argument("--json", metavar="FILE", default="", help="write the certificate as JSON")
    launcher = 'what starts the ranks, such as "srun --mpi=pmi2 -n 2" (default mpirun -n 2)'
    parser.add_argument("--launcher", metavar="COMMAND", default="", help=launcher)
    parser.add_argument("--pairs", type=_parse_pairs, default=40, help=argparse.SUPPRESS)
    return parser


def run(argv: Sequence[str]) -> int:
    """Parse, measure, print; the exit status.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    options, extra = _parser().parse_known_args(argv)
    if extra:
        word = extra[0].split("=")[0]
        wrong = near_flag(word, _FLAGS) if word.startswith("-") else "not a flag or its value"
        raise UsageError(f"{extra[0]}: {wrong}")
    if options.list and not options.parity:
        from mpibench.selftest.certificate import ABOUT

        _say("\n".join(f"{name}: {about}" for name, about in ABOUT.items()))
        return DONE
    if not options.parity:
        return _certify(options)
    for name in ("checks", "runs", "csv", "json", "list"):
        if getattr(options, name):
            raise UsageError(f"--{name}: of the certificate; leave it or --parity out (--output DIR has parity.csv)")
    from mpibench.selftest import parity  # late: it imports numpy

    _say(parity.run(options.pairs, options.output, options.launcher))
    return DONE


def _certify(options: argparse.Namespace) -> int:
    """The certificate; the exit status. What has been judged is shown and written however it ends."""
    from mpibench.selftest import certificate, job  # late: they import numpy
    from mpibench.selftest.lines import Line

    chosen, began = certificate.choose(options.checks), certificate.now()
    files = [(kind, Path(text)) for kind in ("csv", "json") if (text := getattr(options, kind))]
    _refuse_unwritable(files)
    job.launch_command(options.launcher)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="mpibench-selftest-") as temporary:
        place = certificate.Place(Path(temporary) / "interposer.so", Path(temporary) / "runs")
        job.compile_library("interposer.c", place.library)
        if options.output:
            directory = job.prepare_output(options.output, (*certificate.FILES, "runs"))
            files += [(Path(name).suffix[1:], directory / name) for name in certificate.FILES]
            place = place._replace(runs=directory / "runs")
        try:
            certificate.measure(chosen, options.launcher, place, options.runs or 1, lines)
        finally:
            if lines:
                made = certificate.documents(lines, options.launcher, began, place)
                _say(made["text"])
                _write(files, made)
    return certificate.status(lines)


def _refuse_unwritable(files: Sequence[tuple[str, Path]]) -> None:
    """Raise UsageError now rather than after all checks."""
    for kind, path in files:
        reason = "is a directory" if path.is_dir() else "" if path.parent.is_dir() else f"there is no {path.parent}"
        if not reason and not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "not writable"
        if not reason and [other for _, other in files].count(path) > 1:
            reason = "named twice"
        if reason:
            raise UsageError(f"--{kind} {path}: {reason}; name a file in a directory that can be written")


def _write(files: Sequence[tuple[str, Path]], made: Mapping[str, str]) -> None:
    """Write the files that were asked for; all that can be, also if one cannot.

    Raises:
        DiskFault: if one could not be written.
    """
    faults = []
    for kind, path in files:
        try:
            path.write_text(made[kind], encoding="utf-8")
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    if faults:
        raise DiskFault("; ".join(faults))


def _say(report: str) -> None:
    """Print; a reader who left early, as head does, changes no exit status."""
    try:
        sys.stdout.write(report + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise DiskFault(f"stdout: {error.strerror}") from error


def main() -> int:
    """Report errors in one line. SIGTERM and SIGHUP end it as Ctrl-C does, so that the ranks are ended too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(SIGNALLED + number))
    try:
        return run(sys.argv[1:])
    except MpibenchError as error:
        sys.stderr.write(f"mpibench: {error}\n")
        return error.status
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
