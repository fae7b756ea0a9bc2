"""What may pass between parties: kinds, policy, guards, the boundary itself, and the ledger."""

from interlace.boundary.boundary import Boundary, Slot
from interlace.boundary.kinds import Kind
from interlace.boundary.ledger import Ledger
from interlace.boundary.message import Message
from interlace.boundary.policy import Policy

__all__ = ["Boundary", "Kind", "Ledger", "Message", "Policy", "Slot"]
