"""Launches of a benchmark read back side by side: a run directory each, also one that was resumed."""
