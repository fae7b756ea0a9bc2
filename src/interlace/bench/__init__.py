"""Benchmarks that a user can repeat: which method pays, on real data, by how much."""
