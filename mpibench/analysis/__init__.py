"""Pure functions over numbers: statistics, figures, crossover, verdict. No MPI, no files, no printing."""
