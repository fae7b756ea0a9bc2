"""Oblivious key-value stores: a table that gives each key its value and looks random otherwise.

Scheme: the three-hash garbled cuckoo table of Garimella, Pinkas, Rosulek, Trieu and Yanai 2021
("Oblivious Key-Value Stores and Amplification for Private Set Intersection", section 4.1): a value
is the sum of three slots, one in each third of the table, and of those of 64 dense slots that a
64-bit word of the key selects. Keys are peeled off as in a Bloomier filter; the few that cannot be
peeled (seldom any, then mostly two that share all three slots) are solved for in the dense slots.
That fails if these few have linearly dependent words, a chance of 2^-40 with 24 of them; a table
has 1.3 slots a key (peeling works up to 1 in 1.2228; small tables get 1.5 and 256 more). Never
having to draw the seed again is what makes the seed tell nothing about the keys.

Values must look random to whoever sees the table; here a pseudo-random function masks them.
"""

from __future__ import annotations

import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from interlace.align.hashing import Bytes, hash_all

DENSE = 64
SEED_BYTES = 16
_SMALL = 20_000


class EncodingFailed(Exception):
    """The keys cannot be solved for under this seed."""


def slot_count(keys: int) -> int:
    """Slots of a table for ``keys`` keys, the dense ones included."""
    sparse = int(1.3 * keys) + 96 if keys > _SMALL else int(1.5 * keys) + 256
    return (sparse + 2) // 3 * 3 + DENSE


def encode(keys: Bytes, values: Bytes, seed: bytes) -> Bytes:
    """The table for n different keys.

    Args:
        keys: Shape (n, 16), uint8, all different.
        values: Shape (n, w), uint8.
        seed: 16 bytes, public.

    Returns:
        Shape (``slot_count(n)``, w), uint8.

    Raises:
        EncodingFailed: too many keys could not be peeled.
    """
    slots, n = slot_count(len(keys)), len(keys)
    sparse, dense = _positions(keys, seed, slots)
    peeled, left = _peel(sparse, slots - DENSE, n)
    width = values.shape[1]
    table = np.frombuffer(secrets.token_bytes(slots * width), np.uint8).reshape(slots, width).copy()
    if len(left):
        # The slots of what is left stay as they were drawn; the dense slots take up the rest.
        due = values[left] ^ _sparse_sum(table, sparse[left])
        table[slots - DENSE :] = _solve(dense[left], due, table[slots - DENSE :])
    dense_sums = _dense_sum(table, dense)
    for keys_of_round, slots_of_round in reversed(peeled):
        table[slots_of_round] ^= (
            values[keys_of_round]
            ^ _sparse_sum(table, sparse[keys_of_round])
            ^ dense_sums[keys_of_round]
        )
    return table


def decode(table: Bytes, keys: Bytes, seed: bytes) -> Bytes:
    """The value of each key, random-looking for keys that the table does not hold.

    Args:
        table: What :func:`encode` gave, shape (slots, w).
        keys: Shape (n, 16), uint8.
        seed: The same as for :func:`encode`.

    Returns:
        Shape (n, w), uint8.
    """
    sparse, dense = _positions(keys, seed, len(table))
    return _sparse_sum(table, sparse) ^ _dense_sum(table, dense)


def _positions(
    keys: Bytes, seed: bytes, slots: int
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Three sparse slots (n, 3) and the word that selects dense slots (n,), by AES-128."""
    plain = np.ascontiguousarray(keys).data
    subkeys = hash_all([b"sparse", b"dense"], 16, use="okvs", salt=seed)
    first, second = (
        np.frombuffer(
            Cipher(algorithms.AES(k.tobytes()), modes.ECB()).encryptor().update(plain), np.uint8
        ).reshape(-1, 16)
        for k in subkeys
    )
    third = (slots - DENSE) // 3
    words = first.copy().view("<u4")[:, :3].astype(np.uint64)
    words *= np.uint64(third)
    words >>= np.uint64(32)
    sparse = words.astype(np.int32) + np.arange(3, dtype=np.int32) * np.int32(third)
    return sparse, second.copy().view("<u8")[:, 0].copy()


def _sparse_sum(table: Bytes, sparse: NDArray[np.int32]) -> Bytes:
    total: Bytes = table[sparse[:, 0]]
    total ^= table[sparse[:, 1]]
    total ^= table[sparse[:, 2]]
    return total


def _dense_sum(table: Bytes, words: NDArray[np.uint64]) -> Bytes:
    """The sum of the dense slots that each word selects, a byte of the word at a time."""
    slots = table[-DENSE:]
    octets = words.view(np.uint8).reshape(-1, 8)
    total = np.zeros((len(words), table.shape[1]), np.uint8)
    for i in range(8):
        sums = np.zeros((256, table.shape[1]), np.uint8)
        for bit in range(8):
            sums[1 << bit : 2 << bit] = sums[: 1 << bit] ^ slots[8 * i + bit]
        total ^= sums[octets[:, i]]
    return total


def _peel(
    sparse: NDArray[np.int32], slots: int, n: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Take off, round by round, keys that have a slot for themselves.

    Returns:
        Keys and their own slots for each round, and the keys that are left.
    """
    flat = sparse.ravel()
    degree = np.bincount(flat, minlength=slots).astype(np.int32)
    # Each slot holds the sum of its keys' numbers: with one key left, that is the key itself.
    # (Whole numbers below 2^53 are exact as floats.)
    which = np.bincount(flat, weights=np.repeat(np.arange(n), 3), minlength=slots)
    rounds = []
    present = np.ones(n, bool)
    winner = np.empty(n, np.int32)
    candidates = np.flatnonzero(degree == 1)
    while len(candidates):
        keys = which[candidates].astype(np.int64)
        # A key with two slots for itself takes the one that was written last.
        winner[keys] = numbers = np.arange(len(keys), dtype=np.int32)
        won = winner[keys] == numbers
        keys, own = keys[won], candidates[won]
        rounds.append((keys, own))
        present[keys] = False
        touched = sparse[keys].ravel()
        np.subtract.at(degree, touched, 1)
        np.subtract.at(which, touched, np.repeat(keys, 3).astype(np.float64))
        candidates = touched[degree[touched] == 1]
    return rounds, np.flatnonzero(present)


def _solve(words: NDArray[np.uint64], due: Bytes, random: Bytes) -> Bytes:
    """Dense slots such that each word selects slots whose sum is due; the free ones stay random."""
    rows = [(int(w), value.copy()) for w, value in zip(words, due, strict=True)]
    pivots: list[tuple[int, int, Bytes]] = []
    for word, value in rows:
        for bit, other, sum_ in pivots:
            if word >> bit & 1:
                word ^= other
                value ^= sum_
        if not word:
            raise EncodingFailed
        pivots.append((word.bit_length() - 1, word, value))
    slots = random.copy()
    for bit, word, value in reversed(pivots):
        # Later pivots do not occur in this row's own bit, and are set by now.
        others = [i for i in range(DENSE) if word >> i & 1 and i != bit]
        slots[bit] = value ^ np.bitwise_xor.reduce(slots[others], axis=0)
    return slots
