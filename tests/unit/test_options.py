"""Flags, the file of --config, settings as text, and what the overlap benchmark makes of them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpibench.engine.cells import case_names, make_cells
from mpibench.errors import UsageError
from mpibench.options import build_parser, read_command, resolve, settings_text
from mpibench.overlap import Config, find_case, resumed_settings
from mpibench.records import RunDirectory
from mpibench.units import Compute


def given_by(*argv: str) -> dict[str, str]:
    return read_command(build_parser(Config, "mpibench.overlap", ""), Config, argv)


def config(*argv: str) -> Config:
    return resolve(Config, given_by(*argv))


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        config(*argv)
    message = str(error.value)
    assert "\n" not in message
    assert error.value.status == 2
    return message


# Flags


def test_without_flags_there_are_the_defaults_of_the_design() -> None:
    made = config()
    assert made == Config()
    assert (made.sizes[0], made.sizes[-1], len(made.sizes)) == (1 << 10, 16 << 20, 15)
    assert made.compute == (Compute("1ms", 1e-3, None),)
    assert (made.kernel, made.kernel_dtype, made.collective) == ("gemm", "float32", "iallreduce")
    assert (made.progress, made.poll_interval) == (("none", "poll"), pytest.approx(50e-6))
    assert (made.precision, made.iterations, made.budget, made.watchdog) == (0.05, (50, 1000), 40.0, 120.0)
    assert (made.samples, made.seed, made.in_place, made.thread_level) == ("slowest", 0, False, "auto")
    assert (made.device, made.buffers, made.dtype, made.color) == ("auto", "auto", "float32", "auto")


def test_flags_have_their_values() -> None:
    made = config(
        *("--sizes", "4K,1", "--compute=2ms,500us", "--progress", "poll", "--in-place", "--dtype", "int64"),
        *("--budget", "none", "--iterations", "7", "--kernel", "delay", "--no-check", "--quiet", "--seed", "3"),
    )  # fmt: skip
    assert (made.sizes, [c.seconds for c in made.compute]) == ((1, 4096), pytest.approx([2e-3, 5e-4]))
    assert (made.progress, made.in_place, made.dtype) == (("poll",), True, "int64")
    assert (made.budget, made.iterations, made.kernel) == (float("inf"), (7, 7), "delay")
    assert (made.no_check, made.quiet, made.seed, made.dry_run) == (True, True, 3, False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--size", "1K"), "--size: unknown flag, did you mean --sizes?"),
        (("--progres=poll",), "--progres=poll: unknown flag, did you mean --progress?"),
        (("--zzzzzzzz",), "--zzzzzzzz: unknown flag; --help lists them"),
        (("1K",), "1K: neither a flag nor the value of one"),
        (("--sizes",), "--sizes: expected one argument"),
        (("--sizes", "abc"), "--sizes 'abc': a size is a number of bytes"),
        (("--sizes", "-5"), "--sizes '-5': a size is a number of bytes"),
        (("--sizes", ""), "--sizes '': "),
        (("--compute", "5"), "--compute '5': a duration needs its unit"),
        (("--precision", "0%"), "--precision '0%': it lies between 0 % and 100 %"),
        (("--iterations", "10:5"), "--iterations '10:5': the least comes first, such as 5:10"),
        (("--kernel", "gem"), "--kernel 'gem': unknown kernel: did you mean gemm?"),
        (("--collective", "allreduce"), "--collective 'allreduce': unknown collective: did you mean iallreduce?"),
        (("--progress", "none,pol"), "--progress 'none,pol': unknown progress strategy: did you mean poll?"),
        (("--progress", "poll,poll"), "--progress 'poll,poll': poll is there twice"),
        (("--dtype", "float16"), "--dtype 'float16': did you mean float"),
        (("--thread-level", "many"), "--thread-level 'many': "),
        (("--kernel", "nowhere.at_all:Kernel"), "--kernel nowhere.at_all:Kernel: cannot import kernel"),
        (("--kernel", "triad", "--compute", "n=64"), "--compute n=64: the order of a GEMM; triad takes a duration"),
        (("--resume", "a", "--output", "b"), "--output: a resumed run stays in its directory"),
    ],
)
def test_a_mistake_is_one_line_with_the_flag_the_value_and_what_would_be_right(argv: Any, said: str) -> None:
    assert refused(*argv).startswith(said)


# The file of --config


def toml(tmp_path: Path, text: str) -> tuple[str, str]:
    (tmp_path / "run.toml").write_text(text)
    return ("--config", str(tmp_path / "run.toml"))


def test_a_file_has_the_same_names_and_flags_win(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        'sizes = ["4K", 100000]\ncompute = "2ms"\nprecision = 0.1\niterations = 60\nin-place = true\n'
        'progress = ["poll", "none"]\npoll-interval = "20us"\nbudget = "none"\nno-check = false\n',
    )
    made = config(*file, "--compute", "3ms")
    assert (made.sizes, made.compute[0].label, made.precision) == ((4096, 100000), "3ms", 0.1)
    assert (made.iterations, made.in_place, made.progress) == ((60, 60), True, ("poll", "none"))
    assert (made.poll_interval, made.budget, made.no_check) == (pytest.approx(20e-6), float("inf"), False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('size = "1K"', "size: unknown key: did you mean sizes?"),
        ('poll_interval = "20us"', "poll_interval: unknown key: did you mean poll-interval?"),
        ('config = "other.toml"', "config: unknown key"),
        ("precision = true", 'precision = True: it takes text, such as "5%"'),
        ('in-place = "yes"', "in-place = 'yes': it takes true or false"),
        ("in-place = 1", "in-place = 1: it takes true or false"),
        ("[sizes]\nlow = 1", "sizes = {'low': 1}: it takes text"),
        ('sizes = "abc"', "sizes = 'abc': a size is a number of bytes"),
        ("sizes = []", "sizes = ''"),
        ('compute = ["1ms", "1ms"]', "compute = '1ms,1ms': 1ms is there twice"),
        ("sizes = ", "not TOML"),
        ("\udcff", "not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.toml").write_bytes(text.encode(errors="surrogateescape"))
    file = str(tmp_path / "run.toml")
    assert refused("--config", file).startswith(f"--config {file}: {said}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refused("--config", f"{tmp_path}/no.toml") == f"--config {tmp_path}/no.toml: No such file or directory"
    assert refused("--config", str(tmp_path)) == f"--config {tmp_path}: Is a directory"


# Settings as text


TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "sizes": st.sampled_from(["1K:16M", "0,1,3", "1:100:x1.5"]),
        "compute": st.sampled_from(["1ms,n=32", "300 us", ".5ms"]),
        "precision": st.sampled_from(["1%", "0.2"]),
        "budget": st.sampled_from(["none", "3s"]),
        "in_place": st.sampled_from(["true", "false"]),
        "progress": st.sampled_from(["poll", "poll,none"]),
        "seed": st.integers(0, 99).map(str),
        "explain": st.sampled_from(["", "1K-none"]),
    },
)


@given(TEXTS)
def test_settings_kept_as_text_mean_the_same_when_read_back(texts: dict[str, str]) -> None:
    kept = settings_text(Config, texts)
    assert resolve(Config, kept) == resolve(Config, texts)
    assert settings_text(Config, kept) == kept
    assert all(isinstance(value, str) for value in kept.values())


@pytest.fixture
def begun(tmp_path: Path) -> str:
    """A run begun with settings of its own."""
    RunDirectory.create(tmp_path / "run").write_run(
        {
            "settings": settings_text(
                Config, {"sizes": "1K,4K", "budget": "5s", "output": "elsewhere", "dry_run": "true"}
            )
        }
    )
    return str(tmp_path / "run")


def test_a_resumed_run_has_its_settings(begun: str) -> None:
    made = resolve(Config, resumed_settings({"resume": begun}))
    assert (made.sizes, made.budget, made.resume) == ((1024, 4096), 5.0, begun)
    assert (made.output, made.dry_run, made.explain, made.config) == ("", False, "", "")


def test_when_resuming_what_was_measured_stays_and_the_rest_may_change(begun: str) -> None:
    more = {"budget": "9s", "precision": "1%", "iterations": "5:9", "quiet": "true", "sizes": "1024,4KiB"}
    made = resolve(Config, resumed_settings({"resume": begun, **more}))
    assert (made.budget, made.precision, made.iterations, made.quiet) == (9.0, 0.01, (5, 9), True)
    for name, text in (("sizes", "1K"), ("dtype", "int32"), ("seed", "1"), ("in_place", "true"), ("compute", "2ms")):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} {text}: the run was begun with .*new run"):
            resumed_settings({"resume": begun, name: text})


# Cells and cases


@pytest.mark.parametrize(
    ("dtype", "nbytes", "counts"),
    [("float32", (0, 4, 4, 100000), (0, 1, 1, 25000)), ("int64", (0, 8, 8, 100000), (0, 1, 1, 12500))],
)
def test_cells_are_whole_elements(dtype: str, nbytes: tuple[int, ...], counts: tuple[int, ...]) -> None:
    made = make_cells(config("--sizes", "0,1,3,100000", "--dtype", dtype), {"1ms": 77}, 4)
    assert [cell.asked_nbytes for cell in made] == [0, 1, 3, 100000]
    assert tuple(cell.nbytes for cell in made) == nbytes
    assert tuple(cell.count for cell in made) == counts
    assert {(cell.compute, cell.compute_steps, cell.dtype, cell.skip) for cell in made} == {("1ms", 77, dtype, "")}


@pytest.mark.parametrize(("standard", "skipped"), [(3, [False, True, True]), (4, [False] * 3)])
def test_counts_past_32_bits_are_served_by_mpi_4_and_skipped_before(standard: int, skipped: list[bool]) -> None:
    sizes = ",".join(str(4 * count) for count in (2**31 - 1, 2**31, 2**33))
    made = make_cells(config("--sizes", sizes), {}, standard)
    assert [bool(cell.skip) for cell in made] == skipped
    assert [cell.count for cell in made] == [2**31 - 1, 2**31, 2**33]
    assert all("2147483647" in cell.skip for cell in made if cell.skip)


def test_every_size_under_every_compute_is_a_cell() -> None:
    made = make_cells(config("--sizes", "1K,2K", "--compute", "1ms,4ms"), {}, 4)
    assert [(cell.index, cell.compute, cell.nbytes) for cell in made] == [
        (0, "1ms", 1024), (1, "1ms", 2048), (2, "4ms", 1024), (3, "4ms", 2048),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "found"),
    [("64K-1ms-poll", "64K-1ms-poll"), ("64K-poll-1ms", "64K-1ms-poll"), ("none-1K-4ms", "1K-4ms-none")],
)
def test_a_case_is_named_in_full_or_by_the_parts_that_single_it_out(case: str, found: str) -> None:
    assert find_case(case, case_names(config("--sizes", "1K,64K", "--compute", "1ms,4ms"))) == found
    assert find_case("64K", case_names(config("--sizes", "64K", "--progress", "poll"))) == "64K-1ms-poll"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("64K", "that is any of 64K-1ms-none, 64K-1ms-poll"),
        ("64K-1ms-pol", "did you mean 64K-1ms-poll?"),
        ("8K", "one of"),
    ],
)
def test_a_case_that_is_none_or_several_is_refused(case: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^--explain {case}: {said.replace('?', '.')}"):
        find_case(case, case_names(config("--sizes", "1K,64K")))


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_a_helper_thread_needs_thread_multiple(level: str) -> None:
    with pytest.raises(UsageError, match=f"^--thread-level {level}: --progress thread .* use multiple$"):
        config("--progress", "none,thread", "--thread-level", level)
    config("--progress", "none,thread", "--thread-level", "multiple")
    config("--progress", "none,thread")
