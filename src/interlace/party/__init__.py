"""A party and the operations that partners can ask of it."""

from interlace.party.operation import PassiveSide, operation
from interlace.party.party import Party
from interlace.party.peer import Engine, Peer, ask_all
from interlace.party.run import RUN, RunSide
from interlace.party.store import ModelFile, State, holds_state, read_state, write_state

__all__ = [
    "RUN",
    "Engine",
    "ModelFile",
    "Party",
    "PassiveSide",
    "Peer",
    "RunSide",
    "State",
    "ask_all",
    "holds_state",
    "operation",
    "read_state",
    "write_state",
]
