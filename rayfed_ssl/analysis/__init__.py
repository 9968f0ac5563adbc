"""What is computed from runs that are there already: scores, diagnostics, embeddings of their features."""
