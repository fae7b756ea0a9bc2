"""A party's learnt state on its own disk: one safetensors file, JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from interlace.errors import InterlaceError
from interlace.files import write_whole

FILE = "state.safetensors"


class State(NamedTuple):
    """Numbers by name, and everything else as JSON."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def write_state(folder: Path, state: State) -> None:
    """Write a state whole or not at all.

    Raises:
        InterlaceError: the disk does not take it; what was there before is untouched.
    """
    tensors = {k: t.detach().contiguous().clone() for k, t in state.tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written by Python, whose errors say what the system refused; safetensors' own do not.
        write_whole(folder / FILE, save(tensors, metadata={"meta": json.dumps(state.meta)}))
    except OSError as e:
        raise InterlaceError(
            f"{folder} cannot be written ({e.strerror or e}); earlier checkpoints are intact. "
            "Free some space, then resume"
        ) from e


def holds_state(folder: Path) -> bool:
    """Whether :func:`write_state` has finished in this folder before."""
    return (folder / FILE).exists()


def read_state(folder: Path) -> State:
    """Read what :func:`write_state` wrote.

    Raises:
        InterlaceError: there is no whole state in that folder.
    """
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return State(tensors, json.loads(file.metadata()["meta"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as e:
        raise InterlaceError(f"{folder} holds no saved state that can be read") from e
