"""The page of a run: what federation bought, what left each party, what it cost."""

from interlace.report.page import write_report

__all__ = ["write_report"]
