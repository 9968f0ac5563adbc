"""Sweeps on Ray Tune and Optuna."""
