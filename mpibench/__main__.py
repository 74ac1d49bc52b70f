"""Lists the benchmarks and tools of mpibench, a line each. Starts no MPI."""

import importlib
import os
import sys

import mpibench
from mpibench.engine.launcher import identify
from mpibench.errors import DONE, USAGE
from mpibench.present.entry import say

BENCHMARKS = ("overlap",)
TOOLS = ("compare", "selftest")


def main() -> int:
    """Print the list; anything on the command line but --help and --version is refused."""
    launch = identify(os.environ)
    if sys.argv[1:] == ["--version"]:
        return say(launch, f"mpibench {mpibench.__version__}")
    if sys.argv[1:] not in ([], ["--help"], ["-h"]):
        text = f"mpibench: {sys.argv[1]}: not a flag; name a module, such as python -m mpibench.overlap"
        say(launch, text, sys.stderr)
        return USAGE
    lines = ["benchmarks, under a launcher: mpirun -n RANKS python -m mpibench.NAME [--help]"]
    lines += [_line(name) for name in BENCHMARKS]
    lines += ["tools: python -m mpibench.NAME [--help]"]
    lines += [_line(name) for name in TOOLS]
    say(launch, "\n".join(lines))
    return DONE


def _line(name: str) -> str:
    summary = (importlib.import_module(f"mpibench.{name}").__doc__ or "").strip().partition("\n")[0]
    return f"  {name:<10} {summary}"


if __name__ == "__main__":
    sys.exit(main())
