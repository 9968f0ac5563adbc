"""Differential privacy of what clients send: methods around a method, and what a run spends (docs/privacy-budget.md)."""
