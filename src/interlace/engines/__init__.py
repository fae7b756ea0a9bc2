"""Engines carry messages between parties and know nothing of what they mean."""

from interlace.engines.in_process import InProcess

__all__ = ["InProcess"]
