"""The command line: one verb, one file. Heavy imports wait until a verb is carried out."""

from interlace.cli.app import app

__all__ = ["app"]
