"""python -m mpibench.selftest: its command line. Starts neither MPI nor numpy for --help."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpibench import units
from mpibench.errors import DONE, FINDING, SIGNALLED, MpibenchError, UsageError
from mpibench.options import near_flag

_FLAGS = ("--parity", "--checks", "--runs", "--output", "--csv", "--json", "--launcher", "--help")
_LEAST_PAIRS = 6  # fewer have no interval


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message.removeprefix("argument "))


def _parse_pairs(text: str) -> int:
    if not text.isdecimal() or int(text) < _LEAST_PAIRS:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least {_LEAST_PAIRS}, such as 40")
    return units.parse_count(text)


def _parse_runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1, such as 20")
    return units.parse_count(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mpibench.selftest",
        description="Shows on this machine how far mpibench can be trusted. Starts its own mpirun.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--parity", action="store_true", help="only mpibench's hot loops against the same MPI calls from C, in full"
    )
    parser.add_argument("--checks", metavar="LIST", type=units.split_list, default=[], help="only these checks")
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
    if not options.parity:
        return _certify(options)
    for name in ("checks", "runs", "csv", "json"):
        if getattr(options, name):
            raise UsageError(f"--{name}: of the certificate; leave it or --parity out (--output DIR has parity.csv)")
    from mpibench.selftest import parity  # late: it imports numpy

    return _say(parity.run(options.pairs, options.output, options.launcher), DONE)


def _certify(options: argparse.Namespace) -> int:
    """The certificate; the exit status."""
    from mpibench.selftest import certificate, job  # late: they import numpy

    certificate.choose(options.checks)
    files = [(kind, Path(text)) for kind in ("csv", "json") if (text := getattr(options, kind))]
    for kind, path in files:
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"--{kind} {path}: not a file in a directory that can be written")
    folder = None
    if options.output:
        directory = job.prepare_output(options.output, (*certificate.FILES, "runs"))
        files += [(Path(name).suffix[1:], directory / name) for name in certificate.FILES]
        folder = directory / "runs"
        folder.mkdir()
    report, failed = certificate.run(options.checks, options.launcher, files, folder, options.runs or 1)
    return _say(report, FINDING if failed else DONE)


def _say(report: str, status: int) -> int:
    sys.stdout.write(report + "\n")
    sys.stdout.flush()  # here, so that a reader who left shows here
    return status


def main() -> int:
    """Report errors in one line. SIGTERM ends it as Ctrl-C does, so that the ranks are ended too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(SIGNALLED + number))
    try:
        return run(sys.argv[1:])
    except MpibenchError as error:
        sys.stderr.write(f"mpibench: {error}\n")
        return error.status
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout left early, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


if __name__ == "__main__":
    sys.exit(main())
