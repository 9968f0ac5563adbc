"""Connecting to Ray, starting a private one, and watching its health."""
