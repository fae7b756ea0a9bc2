"""What a damaged file of results is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlace.errors import JobError
from interlace.job.results import Results


@pytest.mark.parametrize("content", [b"", b'{"name": "x", "models": [', b"[]", b"\xff\x00"])
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(JobError, match=r"results.json is damaged; remove it, then .* --resume"):
        Results.read(path)
