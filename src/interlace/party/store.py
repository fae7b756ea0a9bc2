"""What a party has learnt on its own disk: a state is one safetensors file, JSON in its header; a
model that people can read is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from interlace.errors import InterlaceError
from interlace.files import write_whole

if TYPE_CHECKING:
    from interlace.party.party import Party

FILE = "state.safetensors"


class State(NamedTuple):
    """Numbers by name, and everything else as JSON."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def put(self, name: str, tensors: Mapping[str, Tensor], meta: Any = None) -> None:
        """Keep what a part has learnt under a name of its own."""
        self.tensors.update({f"{name}/{k}": t for k, t in tensors.items()})
        if meta is not None:
            self.meta[name] = meta

    def part(self, name: str) -> State:
        """What was put under a name."""
        start = f"{name}/"
        tensors = {k.removeprefix(start): t for k, t in self.tensors.items() if k.startswith(start)}
        return State(tensors, self.meta.get(name, {}))


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


class ModelFile(NamedTuple):
    """Where a kind of model that people can read is kept, as JSON, in a party's own folder."""

    file: str
    format: str  # its first line says so
    what: str  # as errors call it

    def write(
        self, party: Party, name: str, model: dict[str, Any], beside: Mapping[str, bytes] = {}
    ) -> None:
        """Keep a party's part of a model, and other files for people ``beside`` it.

        Raises:
            InterlaceError: the disk does not take it.
        """
        folder = party.path("models", name)
        text = json.dumps({"format": self.format, **model}, indent=1, ensure_ascii=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in {self.file: text.encode(), **beside}.items():
                write_whole(folder / file, content)
        except OSError as e:
            raise InterlaceError(f"{folder} cannot be written ({e.strerror or e})") from e

    def read(self, party: Party, name: str) -> dict[str, Any]:
        """What :meth:`write` wrote.

        Raises:
            InterlaceError: there is none, or it is another kind of model.
        """
        folder = party.path("models", name)
        try:
            model: dict[str, Any] = json.loads((folder / self.file).read_bytes())
            if model["format"] != self.format:
                raise ValueError("another format")
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise InterlaceError(f"{folder} holds no {self.what} that can be read") from e
        return model
