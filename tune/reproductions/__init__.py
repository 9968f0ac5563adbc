"""Running the papers' tables and figures."""
