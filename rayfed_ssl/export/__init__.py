"""Encoders for other programs: files of their own."""
