"""Fault injection: what `--inject` asks for, and executors that do it."""
