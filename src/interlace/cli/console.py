"""What the terminal shows: results on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120  # of tables in a file or pipe, which has no width of its own

# Of the emoji that rich knows, two are :AB: and :CD:, as in a fingerprint.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)
if not out.is_terminal:
    out.width = PLAIN_WIDTH


def table(*headings: str, title: str | None = None) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for i, heading in enumerate(headings):
        made.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
    return made


def show(*things: object) -> None:
    """Print results; text is left to the terminal to wrap, so that what is copied is whole."""
    for thing in things:
        out.print(thing, markup=False, soft_wrap=isinstance(thing, str | Text))


def legible(text: str) -> str:
    """What others may have written a part of, without what would change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def say(text: str | Text) -> None:
    """Tell the user what is going on, beside the results."""
    err.print(text, markup=False, soft_wrap=True)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A progress bar for the time of a ``with``; without a terminal, a line every tenth.

    Yields:
        A function that is told what is being done, and which share of the whole is behind.
    """
    if quiet:
        yield lambda _what, _done: None
    elif err.is_terminal:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=err,
            transient=True,
        )
        with bar:
            task = bar.add_task("", total=1.0)
            yield lambda what, done: bar.update(task, description=what, completed=done)
    else:
        shown = -1

        def tell(what: str, done: float) -> None:
            nonlocal shown
            if int(done * 10) > shown:
                shown = int(done * 10)
                say(f"{done:4.0%}  {what}")

        yield tell
