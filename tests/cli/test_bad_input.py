"""What cannot be run is one line, told once, that says what would be right; and nothing is left behind."""

import re
import resource

import pytest

from tests.cli.launch import OVERLAP, Finished, is_open_mpi, mpirun, python

NOT_UNDERSTOOD = [  # the flag, its value, and a word of what would be right
    ("--sizes", "abc", "64K"),
    ("--sizes", "1K:", "LO:HI"),
    ("--sizes", ":1K", "LO:HI"),
    ("--sizes", "8:4", "4:8"),
    ("--sizes", "-5", "64K"),
    ("--sizes", "", "empty"),
    ("--sizes", "1K,,2K", "empty"),
    ("--sizes", "1K,", "empty"),
    ("--sizes", "1K,1024", "once"),
    ("--sizes", "1e3x", "64K"),
    ("--sizes", "1e6", "64K"),
    ("--sizes", "0x10", "64K"),
    ("--sizes", "1.0001K", "whole number"),
    ("--sizes", "1K:1M:2", "x4"),
    ("--sizes", "1K:1M:x1", "x4"),
    ("--compute", "0", "1ms"),
    ("--compute", "0ms", "more than zero"),
    ("--compute", "5", "unit"),
    ("--compute", "fast", "1ms"),
    ("--compute", "", "empty"),
    ("--compute", "1ms,1ms", "once"),
    ("--compute", "n=0", "n=512"),
    ("--precision", "0%", "5%"),
    ("--precision", "100%", "5%"),
    ("--precision", "five", "5%"),
    ("--iterations", "10:5", "5:10"),
    ("--iterations", "0", "50:1000"),
    ("--iterations", "many", "50:1000"),
    ("--budget", "40", "unit"),
    ("--watchdog", "-1s", "none"),
    ("--kernel", "gem", "did you mean gemm?"),
    ("--kernel", "trida", "did you mean triad?"),
    ("--kernel", "xyzzy", "gemm, triad, delay"),
    ("--collective", "iallreduc", "did you mean iallreduce?"),
    ("--poll-interval", "tuned", "or tune"),
    ("--progress", "pol", "did you mean poll?"),
    ("--progress", "none,none", "once"),
    ("--progress", "", "empty"),
    ("--dtype", "float16", "float32"),
    ("--thread-level", "multi", "multiple"),
    ("--samples", "none", "slowest"),
    ("--color", "blue", "auto"),
    ("--seed", "-1", "whole number"),
    ("--device", "gpu", "cuda"),
    ("--buffers", "disk", "host"),
]


def check_refused(finished: Finished, *words: str, status: int = 2) -> None:
    """One line on stderr, with these words in it, and nothing on stdout."""
    assert finished.status == status, finished
    assert len(finished.said) == 1, finished
    assert finished.said[0].startswith("mpibench: "), finished
    for word in words:
        assert word in finished.said[0], finished
    assert finished.out == "", finished
    if not is_open_mpi():  # it frames its own messages of a job that did not end with 0
        assert len(finished.err.splitlines()) == 1, finished


@pytest.mark.parametrize(("flag", "value", "right"), NOT_UNDERSTOOD)
def test_a_value_with_no_meaning(flag, value, right, tmp_path):
    # "-5" looks like a flag unless it is given with "=".
    finished = python(*OVERLAP, f"{flag}={value}", cwd=tmp_path)
    assert finished.status == 2, finished
    assert finished.out == ""
    assert len(finished.err.splitlines()) == 1, finished
    assert finished.err.startswith(f"mpibench: {flag} {value!r}: "), finished
    assert right in finished.err, finished
    assert "usage" not in finished.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sizes", "-5"], "--sizes"),
        (["--size", "4"], "did you mean --sizes?"),
        (["--frobnicate"], "--frobnicate: unknown flag"),
        (["1K:16M"], "1K:16M"),
        (["--kernel"], "--kernel"),
        (["--kernel", "delay", "--compute", "n=512"], "n=512"),
        (["--poll-interval", "tune", "--compute", "n=64,n=512"], "--poll-interval tune: --compute n=64 is one call"),
        (["--poll-interval", "tune", "--progress", "none"], "--poll-interval tune: there is no poll"),
        (["--explain", "64K-2ms-poll"], "--explain 64K-2ms-poll"),
        (["--explain", "poll"], "--explain poll"),
        (["--resume", "nowhere"], "--resume nowhere"),
        (["--config", "nowhere.toml"], "--config nowhere.toml"),
    ],
)
def test_a_command_line_with_no_meaning(words, told, tmp_path):
    finished = python(*OVERLAP, *words, cwd=tmp_path)
    check_refused(finished, told)
    assert "usage" not in finished.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('size = "4"\n', ["size: unknown key", "did you mean sizes?"]),
        ('iteration = "12"\n', ["did you mean iterations?"]),
        ('sizes = "abc"\n', ["sizes = 'abc'", "64K"]),
        ("in-place = 1\n", ["in-place = 1", "true or false"]),
        ("sizes = \n", ["not TOML"]),
        ("[sizes]\nlow = 1\n", ["sizes"]),
    ],
)
def test_a_file_of_options_with_a_mistake(content, told, tmp_path):
    (tmp_path / "options.toml").write_text(content)
    finished = python(*OVERLAP, "--config", "options.toml", cwd=tmp_path)
    check_refused(finished, "--config options.toml", *told)
    assert [path.name for path in tmp_path.iterdir()] == ["options.toml"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sizes", "abc"], "--sizes 'abc'"),
        (["--iterations", "10:5"], "--iterations '10:5'"),
        (["--kernel", "gem"], "did you mean gemm?"),
        (["--size", "4"], "did you mean --sizes?"),
        (["--config", "nowhere.toml"], "--config nowhere.toml"),
        (["--resume", "nowhere"], "--resume nowhere"),
    ],
)
def test_told_once_by_four_ranks(words, told, tmp_path):
    finished = mpirun(4, *OVERLAP, *words, cwd=tmp_path)
    check_refused(finished, told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--output", "taken"], ["--output taken", "--resume"]),
        (["--output", "taken/notes.txt/run"], ["--output taken/notes.txt/run"]),
        (["--output", "/proc/mpibench"], ["--output /proc/mpibench"]),
        (["--sizes", "4096G"], ["4096 GiB", "free"]),
        (["--sizes", "4,4096G"], ["4096 GiB", "free"]),
        (["--buffers", "device", "--device", "cpu"], ["--buffers device"]),
        (["--kernel", "delay", "--device", "cuda"], ["--device cuda"]),
    ],
)
def test_what_only_the_machine_can_refuse(words, told, tmp_path):
    """An output directory with something in it, one that cannot be made, a message that fits in no memory."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("keep me")
    finished = mpirun(3, *OVERLAP, "--thread-level", "multiple", *words, cwd=tmp_path)
    check_refused(finished, *told)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes.txt"]
    assert (tmp_path / "taken" / "notes.txt").read_text() == "keep me"


def test_the_output_of_another_run_is_left_alone(tmp_path):
    words = ("--sizes", "4", "--compute", "100us", "--kernel", "delay", "--iterations", "6", "--output", "run")
    assert mpirun(2, *OVERLAP, "--thread-level", "multiple", *words, cwd=tmp_path).status == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    check_refused(mpirun(2, *OVERLAP, "--thread-level", "multiple", *words, cwd=tmp_path), "--output run", "--resume")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_message_past_two_gigabytes_is_served_or_refused(tmp_path):
    """Never wrapped: where it fits the dry run says its cell, and the count in it is the whole one."""
    finished = python(*OVERLAP, "--sizes", "3G,9G", "--dry-run", cwd=tmp_path)
    assert finished.status == 0, finished
    assert "3G, 9G" in finished.out


def test_one_rank_has_nobody_to_talk_to(tmp_path):
    alone = python(*OVERLAP, cwd=tmp_path)
    check_refused(alone, "one rank", "mpirun -n 2", status=3)
    launched = mpirun(1, *OVERLAP, cwd=tmp_path)
    check_refused(launched, "one rank", "mpirun -n 2", status=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    ],
    ids=["srun", "another library's mpirun"],
)
def test_a_launcher_that_starts_singletons_is_told_apart(variables, tmp_path):
    finished = python(*OVERLAP, cwd=tmp_path, env=variables)
    check_refused(finished, "4 processes", "srun --mpi=", "mpirun", status=3)
    assert list(tmp_path.iterdir()) == []


def test_a_singleton_that_is_not_the_first_is_silent(tmp_path):
    finished = python(*OVERLAP, cwd=tmp_path, env={"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"})
    assert finished.status == 3, finished
    assert finished.said == []


def test_a_gpu_that_is_not_there(tmp_path):
    """Without cupy, without a driver or without a device: the environment cannot run it."""
    finished = mpirun(
        2, *OVERLAP, "--device", "cuda", "--thread-level", "multiple", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "-1"}
    )
    check_refused(finished, "--device cuda", "--device cpu", status=3)
    assert list(tmp_path.iterdir()) == []


OWN = """
class Mine:
    device_driven = emulated = takes_order = False
    step_s = None
    def __init__(self, array_module, dtype, order):
        self.values = array_module.ones(1000, dtype=dtype)
    def step(self):
        self.values.sum()
    def verify(self):
        return True
"""


def test_a_kernel_of_ones_own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    finished = mpirun(
        2, *OVERLAP, "--kernel", "own:Mine", "--sizes", "4", "--compute", "200us", "--iterations", "6",
        "--thread-level", "multiple", "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert finished.status == 0, finished
    assert "own:Mine" in (tmp_path / "run" / "overlap.csv").read_text()


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        ("", "absent:Mine", "absent"),
        ("x = 1\n", "own:Mine", "Mine"),
        ("def broken(:\n", "own:Mine", "own"),
        ("raise OSError('no license')\n", "own:Mine", "no license"),
        ("class Mine:\n    pass\n", "own:Mine", "own:Mine"),
        ("Mine = 3\n", "own:Mine", "own:Mine"),
    ],
    ids=["no module", "no attribute", "syntax error", "module raises", "not a kernel", "not a class"],
)
def test_a_broken_kernel_of_ones_own(module, name, told, tmp_path):
    (tmp_path / "own.py").write_text(module)
    finished = mpirun(2, *OVERLAP, "--kernel", name, "--thread-level", "multiple", cwd=tmp_path)
    check_refused(finished, "--kernel", told)
    assert {path.name for path in tmp_path.iterdir()} <= {"own.py", "__pycache__"}


@pytest.mark.parametrize("flag", ["--help", "--version", "--list"])
def test_told_once_by_eight_ranks(flag, tmp_path):
    finished = mpirun(8, *OVERLAP, flag, cwd=tmp_path)
    assert finished.status == 0, finished
    assert finished.said == []
    marker = {"--help": "--poll-interval", "--version": "mpibench 0", "--list": "gemm "}[flag]
    assert len(re.findall(rf"^ *{re.escape(marker)}", finished.out, re.MULTILINE)) == 1, finished
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option_and_its_default(tmp_path):
    finished = python(*OVERLAP, "--help", cwd=tmp_path)
    assert finished.status == 0, finished
    for words in ("--sizes", "(default 1K:16M)", "(default 5%)", "--no-check", "mpirun -n RANKS python -m"):
        assert words in finished.out


@pytest.mark.parametrize(
    "words", [["mpibench.overlap", "--help"], ["mpibench.overlap", "--sizes", "abc"], ["mpibench"]]
)
def test_neither_numpy_nor_mpi_is_loaded_to_say_something(words, tmp_path):
    loads = python("-X", "importtime", "-m", *words, cwd=tmp_path).err
    imported = set(re.findall(r"\| +([\w.]+)$", loads, re.MULTILINE))
    assert "mpibench.errors" in imported
    assert not {name for name in imported if name.split(".")[0] in ("numpy", "mpi4py", "cupy", "rich", "scipy")}


def test_help_costs_little(tmp_path):
    """At most 0.12 s of processor time beyond an interpreter that does nothing, by the best of a few."""
    bare = min(cpu_seconds("-c", "pass", cwd=tmp_path) for _ in range(5))
    told = min(cpu_seconds(*OVERLAP, "--help", cwd=tmp_path) for _ in range(5))
    assert told - bare < 0.12


def cpu_seconds(*args, cwd):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert python(*args, cwd=cwd).status == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_the_list_of_commands(tmp_path):
    finished = mpirun(4, "-m", "mpibench", cwd=tmp_path)
    assert finished.status == 0, finished
    assert finished.said == []
    for name in ("overlap", "selftest"):
        assert len(re.findall(rf"^  {name} ", finished.out, re.MULTILINE)) == 1, finished


def test_the_list_takes_no_other_flag(tmp_path):
    finished = mpirun(3, "-m", "mpibench", "--sizes", cwd=tmp_path)
    check_refused(finished, "--sizes", "mpibench.overlap")
