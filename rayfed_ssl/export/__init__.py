"""Learned encoders as files for other programs."""
