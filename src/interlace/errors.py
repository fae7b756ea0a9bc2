"""Every error interlace raises on purpose: each says what happened, where, and the way out."""

from __future__ import annotations


class InterlaceError(Exception):
    """Base class. The message is safe to show to another party: it holds no record's values.

    ``by`` is the partner whose word it is, where one over sites has said it.
    """

    by = ""


class DataError(InterlaceError):
    """A table, file or column is not usable as it stands.

    The parts are kept so that a caller can show them apart; the message holds them all.
    """

    def __init__(
        self,
        problem: str,
        *,
        party: str | None = None,
        file: str | None = None,
        column: str | None = None,
        way_out: str | None = None,
    ) -> None:
        self.problem, self.party, self.file, self.column = problem, party, file, column
        self.way_out = way_out
        where = [
            f"{label} '{value}'"
            for label, value in (("party", party), ("file", file), ("column", column))
            if value is not None
        ]
        head = f"{', '.join(where)}: {problem}" if where else problem
        super().__init__(f"{head}. {way_out}" if way_out else head)


class JobError(InterlaceError):
    """A job or party file asks for something that does not exist or does not fit together."""


class AlignmentError(InterlaceError):
    """The parties' people could not be matched."""


class NobodyShared(AlignmentError):
    """None of a party's people is held by a partner too."""


class PolicyError(InterlaceError):
    """A party's policy does not let this value leave."""


class Refused(InterlaceError):
    """A received message is not what was agreed; nothing was changed by it."""


def of_posted(error: Exception, operation: str) -> Exception:
    """An error of an operation that nobody waited for, which says of which."""
    if isinstance(error, JobError | PolicyError | Refused):
        said = type(error)(f"'{operation}', which was sent before: {error}")
        said.by = error.by
        return said
    return error


class PartyFailed(InterlaceError):
    """A party could not answer. Carries the party and the operation, never its data."""

    def __init__(self, party: str, operation: str, reason: str) -> None:
        self.party, self.operation, self.reason = party, operation, reason
        super().__init__(f"party '{party}' could not answer '{operation}': {reason}")


class PartyAway(PartyFailed):
    """A party could not be reached for as long as the job waits. The run can be resumed."""
