"""What protects uploads: methods that change what another one sends and what its server sees."""
