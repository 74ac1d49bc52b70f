"""The engine: policy and the measuring loop. Knows MPI and the device; prints nothing."""
