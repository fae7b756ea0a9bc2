"""The line of JSON with which a benchmark of encrypted models ends."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from interlace.crypto.kernels import cores


def print_last_line(benchmark: str, **found: Any) -> None:
    """Print what was found, after the machine that it was found on."""
    line = {
        "benchmark": benchmark,
        "machine": platform.processor() or platform.machine(),
        "cores": cores(),
        "load": os.getloadavg()[0],  # wall times mean little where others compute too
        **found,
    }
    print(json.dumps(line, default=lambda number: round(float(number), 6)))
