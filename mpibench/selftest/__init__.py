"""The instrument's certificate: what mpibench itself costs and how true it reads, on the user's machine.

Holds the C files that it compiles there. Compares, prints and writes; knows no benchmark.
"""
