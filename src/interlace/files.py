"""Files that are written whole or not at all, whatever stops the program or the machine."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that at every moment either the old content or the new one is there.

    Raises:
        OSError: the disk does not take it; the old content is untouched.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a rename can outlive a power cut that the content does not
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
