"""Encoders for other programs: files of their own, and steps of scikit-learn pipelines."""
