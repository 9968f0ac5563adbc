"""The engine: federation, round loop, local executor, ledger and checks."""
