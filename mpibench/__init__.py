"""mpibench: MPI overlap microbenchmarks. Does your communication hide behind your compute?"""

__version__ = "0.1.0"
