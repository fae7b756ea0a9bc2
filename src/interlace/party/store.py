"""A party's learnt state on its own disk: safetensors for numbers, JSON for the rest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from interlace.errors import InterlaceError


class State(NamedTuple):
    """Numbers by name, and everything else as JSON."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def write_state(folder: Path, state: State) -> None:
    """Write a state whole or not at all: a kill leaves either the old folder or the new one.

    Raises:
        InterlaceError: the disk does not take it; what was there before is untouched.
    """
    fresh = folder.with_name(f".{folder.name}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        # Written by Python, whose errors say what the system refused; safetensors' own do not.
        tensors = {k: t.detach().contiguous().clone() for k, t in state.tensors.items()}
        (fresh / "state.safetensors").write_bytes(save(tensors))
        (fresh / "state.json").write_text(json.dumps(state.meta))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(fresh, folder)
    except OSError as e:
        shutil.rmtree(fresh, ignore_errors=True)
        raise InterlaceError(
            f"{folder} cannot be written ({e.strerror or e}); earlier checkpoints are intact. "
            "Free some space, then resume"
        ) from e


def read_state(folder: Path) -> State:
    """Read what :func:`write_state` wrote.

    Raises:
        InterlaceError: there is no whole state in that folder.
    """
    try:
        meta = json.loads((folder / "state.json").read_text())
        return State(load_file(folder / "state.safetensors"), meta)
    except (OSError, ValueError, SafetensorError) as e:
        raise InterlaceError(f"{folder} holds no saved state that can be read") from e
