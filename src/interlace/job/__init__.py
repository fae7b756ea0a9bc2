"""The contract of a run: what the parties agree on, where its results lie, and what they are."""
