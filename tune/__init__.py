"""Sweeps on Ray Tune and Optuna, and the command line that stands above every layer."""
