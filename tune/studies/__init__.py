"""Studies: many runs of one question. Sweeps, the papers' tables and benchmarks."""
