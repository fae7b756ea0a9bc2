"""``interlace demo``."""


def demo() -> None:
    """Run."""
