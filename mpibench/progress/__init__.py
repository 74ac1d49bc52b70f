"""Progress strategies: what the host does while a collective is in flight. One file each, one line here."""

from mpibench.registry import Registry

PROGRESS = Registry(
    "progress strategy",
    {
        "none": "mpibench.progress.none:NoProgress",
        "poll": "mpibench.progress.poll:Poll",
        "thread": "mpibench.progress.thread:HelperThread",
    },
    members=("drive",),
)
