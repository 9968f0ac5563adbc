"""How many actors there are, what each reserves, and their restarts."""
