"""How much of an all-reduce does a layer's compute hide, up to which message size, and if not, why not?

Times blocking MPI_Allreduce (B), MPI_Iallreduce with an immediate wait (N), the compute (C), both
one after the other (S) and both overlapped (T), for a sweep of message sizes.
"""

import dataclasses
import functools
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mpibench
from mpibench import units
from mpibench.collectives import COLLECTIVES
from mpibench.engine import launcher
from mpibench.engine.cells import ITEM_NBYTES, case_names, make_cells
from mpibench.engine.launcher import Launch
from mpibench.errors import DONE, FINDING, UsageError
from mpibench.kernels import KERNELS
from mpibench.options import (
    Common,
    build_parser,
    one_of,
    option,
    path,
    read_command,
    resolve,
    settings_text,
    some_of,
    switch,
)
from mpibench.present.entry import command, say
from mpibench.progress import PROGRESS
from mpibench.registry import near_match

if TYPE_CHECKING:  # what only measuring needs is imported there: --help is quick
    from pathlib import Path

    from mpibench.engine.results import Results
    from mpibench.engine.runner import Store

MODULE = "mpibench.overlap"


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The options of the overlap benchmark, with the only defaults."""

    sizes: tuple[int, ...] = option(
        "1K:16M", units.parse_sizes, "message sizes: LO:HI[:xF], doubling by default, or a list", "SIZES"
    )
    compute: tuple[units.Compute, ...] = option(
        "1ms",
        units.parse_computes,
        "compute per layer: a duration (calibrated), or n=512 (one GEMM of that order); a list sweeps",
        "LIST",
    )
    steps_from: str = option(
        "", path, "take the calibrated steps of an earlier run: the same work, whatever it lasts here", "DIR"
    )
    kernel: str = option(
        "gemm", KERNELS.check, "gemm, triad, delay (an emulated accelerator), or module:attribute", "NAME"
    )
    kernel_dtype: str = option("float32", one_of("float32", "float64"), "element type of the kernel", "TYPE")
    collective: str = option("iallreduce", COLLECTIVES.check, "iallreduce or persistent", "NAME")
    progress: tuple[str, ...] = option(
        "none,poll", some_of(PROGRESS), "progress strategies, compared side by side", "LIST"
    )
    poll_interval: float | None = option(
        "50us", units.parse_poll_interval, "target time between tests; tune searches for the best", "TIME"
    )
    device: str = option("auto", one_of("auto", "cpu", "cuda"), "where the kernel runs: auto, cpu or cuda", "NAME")
    buffers: str = option(
        "auto", one_of("auto", "host", "staged", "device"), "what MPI is handed: auto, host, staged or device", "KIND"
    )
    dtype: str = option("float32", one_of(*ITEM_NBYTES), "element type of the messages", "TYPE")
    in_place: bool = switch("reduce in place (MPI_IN_PLACE)")
    thread_level: str = option(
        "auto", one_of("auto", "single", "funneled", "serialized", "multiple"), "MPI thread level to ask for", "LEVEL"
    )
    trace: bool = switch("trace.json: a typical iteration of each case, every rank's, to look at in Perfetto")
    explain: str = option("", str, "one case as a picture, after the run; with --resume from its samples alone", "CASE")

    def __post_init__(self) -> None:
        """Refuse what fits no single option.

        Raises:
            UsageError: names the flags.
        """
        if self.resume and self.output:
            raise UsageError("--output: a resumed run stays in its directory; leave --output or --resume out")
        for name, registry, words in (
            ("kernel", KERNELS, (self.kernel,)),
            ("collective", COLLECTIVES, (self.collective,)),
            ("progress", PROGRESS, self.progress),
        ):
            for word in words:
                try:
                    registry.load(word)
                except ValueError as error:
                    raise UsageError(f"--{name} {word}: {error}") from error
        self._refuse_tuning()
        if "thread" in self.progress and self.thread_level not in ("auto", "multiple"):
            raise UsageError(
                f"--thread-level {self.thread_level}: --progress thread calls MPI from a second thread; use multiple"
            )
        if not getattr(KERNELS.load(self.kernel), "takes_order", True):
            for compute in self.compute:
                if compute.order is not None:
                    raise UsageError(
                        f"--compute {compute.label}: the order of a GEMM; {self.kernel} takes a duration, such as 1ms"
                    )

    def _refuse_tuning(self) -> None:
        if self.poll_interval is None and "poll" not in self.progress:
            raise UsageError("--poll-interval tune: there is no poll among --progress; add it, or name a time")
        if self.poll_interval is None and all(compute.order is not None for compute in self.compute):
            raise UsageError(
                f"--poll-interval tune: --compute {self.compute[0].label} is one call, which cannot be split; use a "
                "duration, such as 1ms"
            )


RESUMABLE = {
    "budget",
    "precision",
    "iterations",
    "watchdog",
    "samples",
    "trace",
    "quiet",
    "color",
    "explain",
    "resume",
    "dry_run",
    "config",
    "output",
}
"""Options that may change when a run goes on; all others belong to what was measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return command(functools.partial(run, argv=sys.argv[1:] if argv is None else argv))


def run(launch: Launch, argv: Sequence[str]) -> int:
    """Parse, then list, explain, plan or measure."""
    parser = build_parser(Config, MODULE, __doc__ or "")
    given = read_command(parser, Config, argv)
    if "help" in given:
        return say(launch, parser.format_help())
    if given.get("version") == "true":
        return say(launch, f"mpibench {mpibench.__version__}")
    if given.get("list") == "true":
        from mpibench.present.listing import plugins

        return say(launch, plugins(KERNELS, COLLECTIVES, PROGRESS))
    texts = resumed_settings(given) if given.get("resume") else given
    config = resolve(Config, texts)
    if config.resume and config.explain:
        from pathlib import Path

        return explain(launch, Path(config.resume), config.explain)
    case = find_case(config.explain, case_names(config)) if config.explain else ""
    if config.dry_run:
        from mpibench.present.dry_run import outlook

        return say(launch, outlook(config, make_cells(config, {}, 4), launch))
    return measure(launch, config, texts, case)


def resumed_settings(given: dict[str, str]) -> dict[str, str]:
    """The settings of the run to resume, with what may change taken from the command line.

    Raises:
        UsageError: if an option differs that belongs to what was measured.
    """
    from pathlib import Path

    from mpibench.records import read_run

    kept = settings_text(Config, read_run(Path(given["resume"]), ["settings"])["settings"])  # an older run has fewer
    for name, text in given.items():
        if name not in RESUMABLE and resolve(Config, {name: text}) != resolve(Config, {name: kept[name]}):
            raise UsageError(f"--{name.replace('_', '-')} {text}: the run was begun with {kept[name]}; start a new run")
    return {**kept, "explain": "", "dry_run": "false", "config": "", "output": "", **given}


def find_case(asked: str, names: Sequence[str]) -> str:
    """The full name of the case that `--explain` means: its name, or the parts of it that single it out.

    Raises:
        UsageError: if it means none, with the near match, or more than one.
    """
    wanted = set(asked.split("-"))
    found = [name for name in names if name == asked or wanted <= set(name.split("-"))]
    if len(found) == 1 or asked in found:
        return found[0] if len(found) == 1 else asked
    told = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
    right = f"that is any of {told}" if found else near_match(asked, names)
    raise UsageError(f"--explain {asked}: {right}")


def explain(launch: Launch, directory: "Path", asked: str) -> int:
    """The picture of a case from a run's samples; nothing is measured and MPI is not started."""
    from mpibench.engine.results import evaluate
    from mpibench.engine.runner import load
    from mpibench.present.explain import picture

    store, dropped = load(directory)
    if dropped:
        say(launch, f"mpibench: warning: {dropped}", sys.stderr)
    records = evaluate(store.plan, store.history, store.facts).records
    case = find_case(asked, [record.case for record in records])
    return say(launch, picture(next(record for record in records if record.case == case), store.facts))


def measure(launch: Launch, config: Config, texts: dict[str, str], case: str) -> int:
    """Start MPI, measure, and show the results on rank 0."""
    from mpibench.engine.guard import block_signals

    began = time.monotonic()
    block_signals()  # before numpy: the threads of its BLAS would take the signals
    level, reason = launcher.choose_thread_level(config.thread_level, launch, config.progress)
    blas = launcher.limit_blas_threads(os.environ, launch)
    from mpibench.engine.session import open_session
    from mpibench.engine.sweep import Sweep
    from mpibench.present.progress import ProgressLines

    with open_session(launch, level, config.watchdog, MODULE) as session:
        lines = ProgressLines(config.quiet, f"thread level asked for: {level} ({reason}); BLAS threads {blas}")
        sweep = Sweep(session, config, settings_text(Config, texts), functools.partial(make_cells, config), lines)
        results = sweep.run(shlex.join(sys.orig_argv), lambda: time.monotonic() - began)
    return finish(launch, sweep.store, results, case, config) if results and sweep.store else DONE


def finish(launch: Launch, store: "Store", results: "Results", case: str, config: Config) -> int:
    """Show the results; the exit status."""
    from mpibench.engine.plan import outcome
    from mpibench.engine.stopping import EXHAUSTED, GO_ON
    from mpibench.engine.tuning import read_tuning
    from mpibench.present.explain import picture
    from mpibench.present.table import closing_lines, print_results

    # Under Open MPI every rank has a pty, whatever mpirun's output goes to.
    terminal = sys.stdout.isatty() and not launch.open_mpi
    color = config.color == "always" or (config.color == "auto" and terminal)
    print_results(results, store.facts, read_tuning(store.run), color)
    if case:
        record = next(record for record in results.records if record.case == case)
        say(launch, f"\n{picture(record, store.facts)}")
    # Where all iterations that are allowed were made, only more of them go on.
    measurable = [record.cell.index for record in results.records if record.status not in ("skipped", "failed")]
    outcomes = [outcome(store.plan, store.history, cell, last=True) for cell in dict.fromkeys(measurable)]
    unfinished = sum(word in (GO_ON, EXHAUSTED) for word in outcomes)
    more = "" if GO_ON in outcomes else f" --iterations {config.iterations.least}:{2 * config.iterations.most}"
    say(launch, "\n".join(closing_lines(results, store.directory.path, store.facts.ranks, MODULE, unfinished, more)))
    if store.trace is not None:
        say(launch, f"trace: {store.directory.path / 'trace.json'}, to be opened in Perfetto (ui.perfetto.dev)")
    return FINDING if any(store.history.wrong.values()) else DONE


if __name__ == "__main__":
    sys.exit(main())
