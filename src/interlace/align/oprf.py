"""The KKRT oblivious pseudo-random function: one party evaluates, the other holds the keys.

Scheme: Kolesnikov, Kumaresan, Rosulek and Trieu 2016, "Efficient Batched Oblivious PRF with
Applications to Private Set Intersection" (figures 1 and 2): an IKNP-style OT extension whose
repetition code is replaced by a pseudo-random code. Honest-but-curious parties.

Parameters: code width 512 bits (the paper needs at most 448 for 2^24 ids at 128 bits of
computational and 40 of statistical security); the code is four AES-128 blocks under four public
session keys; the columns are AES-128-CTR streams; the final hash is BLAKE2b over the bin's number
and the 512-bit row.

Why BLAKE2b for the final hash, and not fixed-key AES, which would take all rows in one call: the
reviewed constructions (MMO and TMMO of Guo, Katz, Wang and Yu 2020, "Efficient and Secure
Multiparty Computation from Fixed-Key Block Ciphers") take one 128-bit block, so a 512-bit row would
first have to be folded to 128 bits, for which there is no reviewed construction; and their bound
falls with the number of instances, to about 104 bits at ten million ids. BLAKE2b takes a whole row.

Rows are made and used up block by block, so memory does not grow with the number of bins.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from interlace.align import base_ot, cuckoo
from interlace.align.bits import transpose_bits
from interlace.align.hashing import SALT_BYTES, Bytes, hash_all, hash_rows

CODE_BITS = 512
CODE_BYTES = CODE_BITS // 8
STATISTICAL_BITS = 40
BLOCK_BINS = 65_536  # bins handled at once: 4 MiB of masks in one message


def value_bytes(mine: int, theirs: int) -> int:
    """Length of a value such that a false match has a chance of at most 2^-40 in the whole run.

    Eight bytes at least, since values are looked up by their first eight.
    """
    return max(8, math.ceil((STATISTICAL_BITS + math.log2(max(mine, 1) * max(theirs, 1))) / 8))


class Digests(NamedTuple):
    """What stands for the ids in one session.

    Attributes:
        inputs: Shape (n, 16), uint8; the code's input. Two ids agree with a chance of 2^-128.
        words: Shape (n, 3), uint32; from which the three bins are drawn.
    """

    inputs: Bytes
    words: NDArray[np.uint32]


def digest(ids: Sequence[bytes], session_key: bytes) -> Digests:
    """Hash ids under the session's key (16 bytes, known to both parties)."""
    both = hash_all(ids, 28, use="kkrt ids", salt=session_key)
    words = both[:, 16:].copy().view("<u4").reshape(-1, 3)
    return Digests(both[:, :16].copy(), words)


def bins_of(digests: Digests, bins: int) -> NDArray[np.int32]:
    """The three bins of each id; shape (3, n)."""
    return np.stack([cuckoo.scale(digests.words[:, i], bins) for i in range(cuckoo.HASHES)])


def tagged(inputs: Bytes, which: NDArray[np.int8] | int) -> Bytes:
    """The input of an id together with the hash function that placed it; shape (n, 16)."""
    out = inputs.copy()
    out[:, 15] ^= np.asarray(which + 1, np.uint8)
    return out


def session_key() -> bytes:
    """A fresh session key."""
    return secrets.token_bytes(SALT_BYTES)


class Code:
    """The pseudo-random code C: 16 bytes to 64, AES-128 under four public keys."""

    def __init__(self, session_key: bytes) -> None:
        keys = hash_all([bytes([i]) for i in range(4)], 16, use="kkrt code", salt=session_key)
        self._ciphers = [Cipher(algorithms.AES(k.tobytes()), modes.ECB()) for k in keys]

    def __call__(self, inputs: Bytes) -> Bytes:
        """Code words of shape (n, 64) for inputs of shape (n, 16)."""
        plain = np.ascontiguousarray(inputs)
        out = np.empty((len(plain), 4, 16), np.uint8)
        for i, cipher in enumerate(self._ciphers):
            block = cipher.encryptor().update(plain.data)
            out[:, i] = np.frombuffer(block, np.uint8).reshape(-1, 16)
        return out.reshape(-1, CODE_BYTES)


class _Columns:
    """512 bit columns stretched from 512 seeds, read from the top in blocks."""

    def __init__(self, seeds: Sequence[bytes]) -> None:
        # Each seed keys one stream only, so all counters may start at nought.
        self._streams = [Cipher(algorithms.AES(s), modes.CTR(bytes(16))).encryptor() for s in seeds]

    def read(self, bins: int) -> Bytes:
        """The next ``bins`` rows of all columns, as columns: shape (512, bins // 8)."""
        zeros = bytes(bins // 8)
        out = np.empty((CODE_BITS, bins // 8), np.uint8)
        for row, stream in zip(out, self._streams, strict=True):
            row[:] = np.frombuffer(stream.update(zeros), np.uint8)
        return out


def blocks(bins: int) -> Iterator[tuple[int, int]]:
    """Start and size of each block of bins."""
    for start in range(0, bins, BLOCK_BINS):
        yield start, min(BLOCK_BINS, bins - start)


def _finish(rows: Bytes, bins: NDArray[np.integer], size: int) -> Bytes:
    """The last step of the function: H(bin, row)."""
    packed = np.empty((len(rows), CODE_BYTES + 8), np.uint8)
    packed[:, :CODE_BYTES] = rows
    packed[:, CODE_BYTES:] = bins.astype("<u8").view(np.uint8).reshape(-1, 8)
    return hash_rows(packed, size, use="kkrt value")


class Placed(NamedTuple):
    """The evaluator's ids in their bins; the same for every partner of a session.

    Attributes:
        digests: Of the ids.
        table: Shape (bins,), int32; the id in each bin, or -1.
        which: Shape (n,), int8; the hash function that placed each id.
        code: Of the session.
    """

    digests: Digests
    table: NDArray[np.int32]
    which: NDArray[np.int8]
    code: Code

    @property
    def inputs(self) -> Bytes:
        """The function's input for each id; shape (n, 16)."""
        return tagged(self.digests.inputs, self.which)


def place(ids: Sequence[bytes], session_key: bytes) -> Placed:
    """Hash the evaluator's ids and place them.

    Raises:
        TableFull: this session key does not fit; take another.
    """
    digests = digest(ids, session_key)
    bins = cuckoo.bin_count(len(ids))
    table, which = cuckoo.insert(bins_of(digests, bins), bins)
    return Placed(digests, table, which, Code(session_key))


class Evaluator:
    """The party that learns F(bin, id) for its own ids, one in each bin, and nothing else.

    Args:
        placed: Its ids in their bins.
        keys: Both keys of each of the 512 base transfers.
        size: Length of a value in bytes.
    """

    def __init__(self, placed: Placed, keys: Sequence[tuple[bytes, bytes]], size: int) -> None:
        self._placed = placed
        self._zero = _Columns([k[0] for k in keys])
        self._one = _Columns([k[1] for k in keys])
        self.values = np.empty((len(placed.which), size), np.uint8)

    def masks(self) -> Iterator[Bytes]:
        """The masks to send, block by block, each of shape (bins of the block, 64).

        After the last one, ``values`` holds the function's value for each id.
        """
        table, inputs = self._placed.table, self._placed.inputs
        for start, size in blocks(len(table)):
            who = table[start : start + size]
            full = np.flatnonzero(who >= 0)
            # An empty bin is filled with a random input, so that nobody sees that it is empty.
            asked = np.frombuffer(secrets.token_bytes(16 * size), np.uint8).reshape(size, 16).copy()
            asked[full] = inputs[who[full]]
            zero, one = self._zero.read(size), self._one.read(size)
            one ^= zero
            masks = transpose_bits(one)
            masks ^= self._placed.code(asked)
            rows = transpose_bits(zero)[full]
            self.values[who[full]] = _finish(rows, full + start, self.values.shape[1])
            yield masks


class KeyHolder:
    """The party that can compute F for any bin and id, after it has seen the evaluator's masks.

    It computes the values of its own n ids while the masks arrive, at all three bins of each.

    Args:
        ids: Its own ids.
        session_key: The session's key.
        bins: How many bins the evaluator has.
        size: Length of a value in bytes.
        offer: The evaluator's point of the base transfers.

    Attributes:
        answers: The points to send back, 512 of them.
        values: Shape (3, n, size), uint8; complete when ``ready``.

    Raises:
        Refused: ``offer`` is not a point of the group.
    """

    def __init__(
        self, ids: Sequence[bytes], session_key: bytes, bins: int, size: int, offer: bytes
    ) -> None:
        secret = np.frombuffer(secrets.token_bytes(CODE_BYTES), np.uint8)
        choices = np.unpackbits(secret, bitorder="little").tolist()
        self.answers, keys = base_ot.choose(offer, choices)
        self._secret = secret
        self._columns = _Columns(keys)
        self._code = Code(session_key)
        self.digests = digest(ids, session_key)
        self._bins = bins
        self._where = bins_of(self.digests, bins)
        self._next = 0
        self.values = np.empty((cuckoo.HASHES, len(ids), size), np.uint8)
        # Ids sorted by the block that their bin falls in; few blocks, so a radix sort of 16 bits.
        last = (bins - 1) // BLOCK_BINS
        in_block = (self._where // BLOCK_BINS).astype(np.uint16)
        self._order = [np.argsort(b, kind="stable").astype(np.int32) for b in in_block]
        self._ends = [np.cumsum(np.bincount(b, minlength=last + 1)) for b in in_block]

    @property
    def ready(self) -> bool:
        """Whether all masks have arrived."""
        return self._next >= self._bins

    @property
    def due(self) -> int:
        """How many rows of masks must come next."""
        return min(BLOCK_BINS, self._bins - self._next)

    def take(self, masks: Bytes) -> None:
        """Take the masks of the next block, shape (``due``, 64)."""
        start, block = self._next, self._next // BLOCK_BINS
        rows = transpose_bits(self._columns.read(len(masks)))
        rows ^= masks & self._secret
        for i in range(cuckoo.HASHES):
            ends = self._ends[i]
            mine = self._order[i][ends[block - 1] if block else 0 : ends[block]]
            where = self._where[i, mine]
            own = self._code(tagged(self.digests.inputs[mine], i))
            own &= self._secret
            own ^= rows[where - start]
            self.values[i, mine] = _finish(own, where, self.values.shape[2])
        self._next = start + len(masks)
