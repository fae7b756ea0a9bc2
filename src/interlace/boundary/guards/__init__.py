"""Guards: what a value passes before it leaves, composed with :func:`chain`.

A guard is a function from tensor to tensor (a defence) or a codec (a compression, whose coded form
is what travels). Each file holds one family; :data:`GUARDS` names them for party files.
"""

from interlace.boundary.guards.base import Chain, Codec, Coded, Guard, Sending, chain
from interlace.boundary.guards.catalogue import GUARDS, build_guard

__all__ = ["GUARDS", "Chain", "Codec", "Coded", "Guard", "Sending", "build_guard", "chain"]
