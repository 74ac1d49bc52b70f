"""Options: from a frozen dataclass to flags and TOML keys, and back to text for run.json.

One dataclass per benchmark holds the only defaults. A field declares its default as the text a
user would type, the parser of that text, and a help line; the flag, the TOML key and the setting
kept in run.json all come from it. Knows the near matches; knows nothing of MPI.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mpibench import units
from mpibench.errors import UsageError
from mpibench.registry import Registry, near_match

C = TypeVar("C")


def option(default: str, parse: Callable[[str], Any], help_: str, metavar: str) -> Any:
    """A dataclass field for an option with a value; `default` is parsed like what a user types."""
    metadata = {"text": default, "parse": parse, "help": help_, "metavar": metavar}
    return dataclasses.field(default=parse(default), metadata=metadata)


def switch(help_: str) -> Any:
    """A dataclass field for an option that is off unless given."""
    return dataclasses.field(default=False, metadata={"text": "false", "parse": None, "help": help_})


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that takes one of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(near_match(text, words))
        return text

    return parse


def some_of(registry: Registry) -> Callable[[str], tuple[str, ...]]:
    """A parser for a list of a registry's names."""

    def parse(text: str) -> tuple[str, ...]:
        return tuple(registry.check(word) for word in units.split_list(text))

    return parse


def path(text: str) -> str:
    """A path; an empty text means not given."""
    return text


@dataclasses.dataclass(frozen=True)
class Common:
    """Options that every benchmark has: same word, same meaning."""

    precision: float = option("5%", units.parse_share, "half-width of the interval over the median to stop at", "SHARE")
    iterations: units.IterationRange = option(
        "50:1000", units.parse_iterations, "least and most iterations of a cell, or one number", "LEAST:MOST"
    )
    budget: float = option(
        "40s", units.parse_budget, "time per launch, from MPI's start to the last file; or none", "TIME"
    )
    watchdog: float = option(
        "120s", units.parse_budget, "longest time without a finished phase before the job is ended; or none", "TIME"
    )
    output: str = option("", path, "directory of the run (default results/<benchmark>-<UTC>-<host>-n<ranks>/)", "DIR")
    resume: str = option("", path, "go on with an interrupted run: its settings and samples are read back", "DIR")
    samples: str = option(
        "slowest", one_of("slowest", "all"), "slowest: spans and the slowest rank; all: every rank's times too", "WHAT"
    )
    config: str = option("", path, "options from a file, same names as the flags; flags win", "FILE.toml")
    dry_run: bool = switch("print the cells, the memory and the time it would take, and stop")
    seed: int = option("0", units.parse_count, "seed of the order of phases", "N")
    no_check: bool = switch("do not check results (for measuring mpibench itself)")
    quiet: bool = switch("no progress lines")
    color: str = option("auto", one_of("auto", "always", "never"), "colour: auto, always or never", "WHEN")
    list: bool = switch("list kernels, collectives and strategies, a line each, and stop")
    version: bool = switch("print the version and stop")


def flag(name: str) -> str:
    """The flag of a field: no_check is --no-check."""
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message.removeprefix("argument "))


def build_parser(config_class: type[Any], module: str, description: str, usage: str = "") -> argparse.ArgumentParser:
    """The command line of a benchmark, or of a tool with its own `usage`. Values stay text; `resolve` reads them."""
    parser = _Parser(
        prog=f"python -m {module}", usage=usage or f"mpirun -n RANKS python -m {module} [options]",
        description=description, add_help=False, allow_abbrev=False,
        argument_default=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--help", "-h", action="store_true", help="print this and stop")
    for field in dataclasses.fields(config_class):
        meta = field.metadata
        common: dict[str, Any] = {"dest": field.name, "help": meta["help"]}
        if meta["parse"] is None:
            parser.add_argument(flag(field.name), action="store_const", const="true", **common)
            continue
        if meta["text"]:
            common["help"] += f" (default {meta['text']})".replace("%", "%%")
        parser.add_argument(flag(field.name), metavar=meta["metavar"], **common)
    return parser


def read_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, str]:
    """The flags that were given, by field name, as text.

    Raises:
        UsageError: for an unknown flag, with the near match, or one without its value.
    """
    flags, operands = split_operands(parser, argv)
    if operands:
        raise UsageError(f"{operands[0]}: neither a flag nor the value of one")
    return flags


def split_operands(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The flags that were given, by field name, as text; and what is neither a flag nor the value of one.

    Raises:
        UsageError: for an unknown flag, with the near match, or one without its value.
    """
    namespace, extra = parser.parse_known_args(argv)
    for word in extra:
        if word.startswith("-"):
            flags = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
            raise UsageError(f"{word}: {near_flag(word.split('=')[0], flags)}")
    return vars(namespace), extra


def read_command(parser: argparse.ArgumentParser, config_class: type[Common], argv: Sequence[str]) -> dict[str, str]:
    """The options given by flags and by the file of `--config`, by field name, as text; flags win.

    Values of the file are checked here, so that a message names the file.

    Raises:
        UsageError: as `read_flags`, `read_toml` and `resolve`.
    """
    flags = read_flags(parser, argv)
    if not flags.get("config"):
        return flags
    file = flags["config"]
    from_file = read_toml(file, config_class)
    resolve(config_class, from_file, lambda name: f"--config {file}: {flag(name)[2:]} =")
    return {**from_file, **flags}


def near_flag(word: str, flags: Sequence[str]) -> str:
    """What to say of an unknown flag: the near match alone, for there are many."""
    near = near_match(word, flags)
    return f"unknown flag, {near.split('?')[0]}?" if near.startswith("did you") else "unknown flag; --help lists them"


def read_toml(file: str, config_class: type[Common]) -> dict[str, str]:
    """The options of a TOML file, by field name, as text.

    Raises:
        UsageError: for a missing or broken file, an unknown key (with the near match) or a value
            of a type that no flag takes.
    """
    import tomllib

    try:
        with open(file, "rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise UsageError(f"--config {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file}: not TOML: {error}") from error
    known = {flag(field.name)[2:]: field for field in dataclasses.fields(config_class)}
    texts = {}
    for key, value in content.items():
        if key not in known or key == "config":
            raise UsageError(f"--config {file}: {key}: unknown key: {near_match(key, known)}")
        field = known[key]
        if isinstance(value, bool) != (field.metadata["parse"] is None) or isinstance(value, dict):
            wanted = "true or false" if field.metadata["parse"] is None else f'text, such as "{field.metadata["text"]}"'
            raise UsageError(f"--config {file}: {key} = {value!r}: it takes {wanted}")
        items = value if isinstance(value, list) else [value]
        texts[field.name] = ",".join(str(item) for item in items) if not isinstance(value, bool) else str(value).lower()
    return texts


def resolve(config_class: type[C], texts: Mapping[str, str], where: Callable[[str], str] = flag) -> C:
    """The options with the meaning of their texts; what is not in `texts` has its default.

    Raises:
        UsageError: for a value with no meaning; names the flag (as `where` spells it), the value, and
            what would be right.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        if field.name not in texts:
            continue
        text, parse = texts[field.name], field.metadata["parse"]
        if parse is None:
            values[field.name] = text == "true"
            continue
        try:
            values[field.name] = parse(text)
        except ValueError as error:
            raise UsageError(f"{where(field.name)} {text!r}: {error}") from None
    return config_class(**values)


def settings_text(config_class: type[Common], texts: Mapping[str, str]) -> dict[str, str]:
    """Every option as text, defaults included: what run.json keeps, and what `resolve` reads back."""
    return {field.name: texts.get(field.name, field.metadata["text"]) for field in dataclasses.fields(config_class)}
