"""The frame of every command: what goes wrong is one line, told once however many ranks there are."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TextIO

from mpibench.engine.launcher import Launch, identify
from mpibench.errors import DONE, FAULT, MpibenchError

_AFTER_RANK_0_S = 0.3
_AFTER_RANK_0_OPEN_MPI_S = 1.0  # its mpirun drops what rank 0 says if another rank ends first


def command(body: Callable[[Launch], int]) -> int:
    """Run a command's body; its exit status, or that of the error it ended with, said in one line."""
    launch = identify(os.environ)
    try:
        status = body(launch)
        if launch.rank == 0:
            sys.stdout.flush()
        return status
    except MpibenchError as error:
        if launch.rank == 0:
            print(f"mpibench: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(_AFTER_RANK_0_OPEN_MPI_S if launch.open_mpi else _AFTER_RANK_0_S)
        return error.status
    except BrokenPipeError:  # the reader of stdout left early, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception:
        traceback.print_exc()
        return FAULT


def say(launch: Launch, text: str, stream: TextIO | None = None) -> int:
    """Print on rank 0, on stdout unless told, and end well."""
    if launch.rank == 0:
        print(text, file=stream or sys.stdout, flush=True)
    return DONE
