"""Collectives: what is started and waited for. One file each, one line here."""

from mpibench.registry import Registry

COLLECTIVES = Registry(
    "collective",
    {
        "iallreduce": "mpibench.collectives.iallreduce:Iallreduce",
        "persistent": "mpibench.collectives.persistent:Persistent",
    },
    members=("prepare", "release"),
)
