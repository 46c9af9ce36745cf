"""Training documents: each module writes one kind of text from a seeded generator."""
