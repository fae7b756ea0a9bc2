"""The program: its verbs, what holds for all of them, and how it fails."""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn, ParamSpec, TypeVar

import typer
from rich.text import Text

import interlace
from interlace.cli import (
    approve,
    bench,
    console,
    demo,
    export,
    federation,
    inspect,
    ledger,
    logs,
    methods,
    party,
    plan,
    predict,
    refuse,
    report,
    results,
    run,
    serve,
    split,
    status,
    stop,
    submit,
)
from interlace.errors import InterlaceError

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="interlace",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Their tracebacks show local variables, and those can hold people's data.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_debug = False

atexit.register(gc.freeze)  # else all that was loaded is searched for garbage: a second


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlace {interlace.__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="INTERLACE_DEBUG", help="Show tracebacks of errors."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """One model from several organisations' tables, without moving a record.

    Start with `interlace demo`. With tables of your own: `inspect` says how they fit together,
    `methods` what there is to choose from and what can be set, `run` trains by a job file,
    `predict` scores new people, `serve` answers for one at a time, `report` shows a run again.
    With a single table: `split` cuts it into parties.

    With organisations on machines of their own: `party` and `federation` bring them together;
    `plan`, `submit`, `approve`, `status`, `results` and `ledger` are for the runs over them.
    """
    global _debug
    _debug = debug


def _guarded(function: Callable[P, R]) -> Callable[P, R]:
    """The verb, with errors that a user can act on."""

    @functools.wraps(function)
    def verb(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except InterlaceError as e:
            _fail(str(e), 2)
        except OSError as e:
            if e.errno == errno.EPIPE:  # who read our output has had enough
                raise
            _fail(_explain(e), 2)
        except Exception as e:
            _fail(
                f"{type(e).__name__}, which should not happen: a fault in interlace. "
                "`interlace --debug ...` shows where; please report it with that traceback",
                1,
            )

    return verb


def _fail(message: str, code: int) -> NoReturn:
    if _debug:
        traceback.print_exc()
    console.say(Text.assemble(("error: ", "bold red"), console.legible(message)))
    raise typer.Exit(code)


def _explain(e: OSError) -> str:
    """What the system refused, and what to do about it."""
    ways_out = {
        errno.ENOSPC: "Free some space, then repeat the command",
        errno.EDQUOT: "Free some space, then repeat the command",
        errno.EACCES: "Choose a folder that this user may write, or let it read the file",
        errno.EPERM: "Choose a folder that this user may write, or let it read the file",
        errno.EROFS: "Choose a folder that can be written",
    }
    what = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror or type(e).__name__)
    way_out = ways_out.get(e.errno or 0)
    return f"{what}. {way_out}" if way_out else what


for _verb in (
    demo.demo,
    split.split,
    inspect.inspect,
    methods.methods,
    run.run,
    predict.predict,
    export.export,
    serve.serve,
    report.report,
    bench.bench,
    plan.plan,
    submit.submit,
    approve.approve,
    refuse.refuse,
    status.status,
    logs.logs,
    stop.stop,
    results.results,
):
    app.command(_verb.__name__)(_guarded(_verb))

for _name, _about, _verbs in (
    (
        "party",
        "One organisation's folder: its keys, its policy, its site. What a party file and its "
        "policy can say: `interlace methods party` and `interlace methods policy`.",
        (
            party.new,
            party.check,
            party.request,
            party.install,
            party.up,
            party.down,
            party.stop,
        ),
    ),
    (
        "federation",
        "Found a federation of organisations, and sign their certificates.",
        (federation.new, federation.approve),
    ),
    (
        "ledger",
        "What left this party in a run, against what was planned and what a partner got.",
        (ledger.show_, ledger.verify, ledger.export, ledger.diff),
    ),
):
    _group = typer.Typer(name=_name, help=_about, no_args_is_help=True)
    for _of_group in _verbs:
        _group.command(_of_group.__name__.rstrip("_"))(_guarded(_of_group))
    app.add_typer(_group)
