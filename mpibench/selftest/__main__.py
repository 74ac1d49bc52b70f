"""python -m mpibench.selftest: its command line. Starts neither MPI nor numpy for --help."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mpibench import units
from mpibench.errors import DONE, SIGNALLED, MpibenchError, UsageError
from mpibench.options import near_flag

_FLAGS = ("--parity", "--output", "--launcher", "--help")
_USAGE = (
    "usage: python -m mpibench.selftest --parity [--output DIR] [--launcher COMMAND]; --parity is what exists now\n"
)
_LEAST_PAIRS = 6  # fewer have no interval


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message.removeprefix("argument "))


def _parse_pairs(text: str) -> int:
    if not text.isdecimal() or int(text) < _LEAST_PAIRS:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least {_LEAST_PAIRS}, such as 40")
    return units.parse_count(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mpibench.selftest",
        description="Shows on this machine how far mpibench can be trusted. Starts its own mpirun.",
        allow_abbrev=False,
    )
    parser.add_argument("--parity", action="store_true", help="mpibench's hot loops against the same MPI calls from C")
    parser.add_argument("--output", metavar="DIR", default="", help="write DIR/parity.csv")
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
        sys.stderr.write(_USAGE)
        return UsageError.status
    from mpibench.selftest import parity  # late: it imports numpy

    report = parity.run(options.pairs, options.output, options.launcher)
    sys.stdout.write(report + "\n")
    sys.stdout.flush()  # here, so that a reader who left shows here
    return DONE


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
