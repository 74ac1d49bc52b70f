"""The one exception tree. Each class knows the exit status it ends the program with."""

DONE, FINDING, USAGE, ENVIRONMENT, INCONCLUSIVE, STUCK, FAULT = range(7)
SIGNALLED = 128  # plus the signal's number


class MpibenchError(Exception):
    """Base of all errors that are reported as one line; `status` is the exit status."""

    status = FAULT
    agreed = False  # True once every rank raises it together, so that the job can end in order


class UsageError(MpibenchError):
    """A flag, key or file is wrong: the message names it, its value, and what would be right."""

    status = USAGE


class EnvironmentRefused(MpibenchError):
    """The environment cannot run it: one rank, a mismatched launcher, a missing device or library."""

    status = ENVIRONMENT


class DiskFault(MpibenchError):
    """The record could not be written; what was on disk before is whole."""

    status = FAULT


class WrongData(MpibenchError):
    """A result was wrong: there is no figure."""

    status = FINDING


class Stuck(MpibenchError):
    """A job that was started did not end in time."""

    status = STUCK


class Unsupported(Exception):
    """A plugin cannot run here; the message is the reason and becomes a `skipped` row."""
