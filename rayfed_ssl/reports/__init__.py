"""Run records to tables and figures."""
