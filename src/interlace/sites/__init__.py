"""Runs across organisations: each has a folder, a certificate, and the last word on every job."""
