"""Lengths and distances of uploads and of their combinations, from their inner products G [n, n] alone."""

import torch
from torch import Tensor


def distances(gram: Tensor) -> Tensor:
    """Squared distances ||x_i - x_j||^2 [n, n]."""
    squares = gram.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0)


def from_combination(gram: Tensor, weights: Tensor) -> Tensor:
    """Squared distances ||x_k - sum_j a_j x_j||^2 [n], below 0 by rounding at most."""
    return gram.diagonal() - 2 * gram @ weights + weights @ gram @ weights


def lengths(gram: Tensor) -> Tensor:
    """Norms ||x_k|| [n]."""
    return gram.diagonal().clamp(min=0).sqrt()


def cosines(gram: Tensor) -> Tensor:
    """Cosines of x_i and x_j [n, n]; 0 beside what is 0."""
    long = lengths(gram)
    return gram / (long[:, None] * long[None, :]).clamp(min=1e-300)


def shares_within(norms: Tensor, bound: Tensor | float) -> Tensor:
    """Factors [n] that bring norms to a bound at most; 1 of what is within."""
    return torch.where(norms > bound, bound / norms, 1.0)


def even(rows: Tensor, number: int) -> Tensor:
    """Weights [n] of a plain mean of some rows."""
    weights = torch.zeros(number, dtype=torch.float64)
    weights[rows] = 1 / len(rows)
    return weights
