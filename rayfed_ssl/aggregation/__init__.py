"""Aggregation of uploads: weighted means and compression."""
