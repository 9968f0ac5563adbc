"""The engine: federation, round loop, local executor, ledger, checks, faults and costs."""
