"""What starting costs: no MPI, numpy or rich for a list or a help text; and every module can be imported."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpibench

ROOT = Path(mpibench.__path__[0]).parent
HEAVY = {"numpy", "mpi4py", "rich", "cupy", "matplotlib", "plotly", "pandas", "scipy"}
RUN = """
import json, runpy, sys
module, sys.argv[1:], heavy = sys.argv[1], sys.argv[3:], json.loads(sys.argv[2])
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    status = None
except SystemExit as end:
    status = end.code
print(json.dumps({"status": status, "imported": sorted(set(heavy) & set(sys.modules))}), file=sys.stderr)
"""
IMPORT = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = repr(error)
print(json.dumps({"failed": failed, "mpi": "mpi4py.MPI" in sys.modules}))
"""


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in the checkout, outside any launcher."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM", "PYTHON"))
    }
    return subprocess.run([sys.executable, *argv], cwd=ROOT, env=kept, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "argv", "status", "said"),
    [
        ("mpibench.overlap", ["--help"], 0, "--poll-interval"),
        ("mpibench.overlap", ["--version"], 0, mpibench.__version__),
        ("mpibench.overlap", ["--sizes", "abc"], 2, "--sizes"),
        ("mpibench", [], 0, "overlap"),
        ("mpibench.selftest", ["--help"], 0, "--parity"),
    ],
)
def test_nothing_heavy_is_imported(module: str, argv: list[str], status: int, said: str) -> None:
    done = python("-c", RUN, module, json.dumps(sorted(HEAVY)), *argv)
    assert json.loads(done.stderr.splitlines()[-1]) == {"status": status, "imported": []}
    assert said in done.stdout + done.stderr


def test_a_usage_error_is_one_line() -> None:
    done = python("-m", "mpibench.overlap", "--sizes", "1K:")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mpibench: --sizes '1K:': ")


def test_every_benchmark_and_tool_is_listed_with_a_line() -> None:
    done = python("-m", "mpibench")
    assert (done.returncode, done.stderr) == (0, "")
    listed = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert set(listed) >= {"overlap", "selftest"}
    assert all(len(line.split()) > 2 for line in listed.values())


def test_every_module_is_imported_and_none_starts_mpi() -> None:
    names = [found.name for found in pkgutil.walk_packages(mpibench.__path__, "mpibench.", onerror=lambda name: None)]
    assert {"mpibench.overlap", "mpibench.kernels.gemm", "mpibench.engine.measure", "mpibench.__main__"} <= set(names)
    done = python("-c", IMPORT, *names)
    assert json.loads(done.stdout) == {"failed": {}, "mpi": False}
