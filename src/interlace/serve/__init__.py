"""Serving: scores for new people from a finished run."""
