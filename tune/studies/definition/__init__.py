"""Sweep files: what is varied, sought and shown."""
