"""The papers' tables and figures as data."""
