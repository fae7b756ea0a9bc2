"""``interlace predict``: score new people with the models of a run."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import Yes, warn
from interlace.errors import JobError
from interlace.files import write_whole

if TYPE_CHECKING:
    import polars as pl

    from interlace.sites.contract import Contract
    from interlace.sites.folder import PartyFolder, People, RunFolder


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    table: Annotated[
        list[str],
        typer.Option(
            metavar="PARTY=PATH",
            help="A party's table of the people to score; one for each party, over sites your own.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the scores go: .csv or .parquet; replaced if it is there.")
    ] = Path("scores.csv"),
    most: Annotated[
        int, typer.Option(min=1, help="Over sites: most people to ask the partners about at once.")
    ] = 1000,
    yes: Yes = False,
) -> None:
    """Score new people with the models of a finished run.

    People whom all parties hold are scored jointly; people whom a partner lacks, by the model that
    the active party can use alone, or jointly from the views that there are, where the method can
    do that. Their tables need the columns the run had, but no label.

        interlace predict runs/caravan --table insurer=new.csv --table vendor=theirs.csv

    After a horizontal training each party has the whole model and scores its own people alone:

        interlace predict runs/clinics --table north=new.csv

    The run folder of a run over sites is the one in this party's folder. Give this party's table;
    the partners' are named in their own files. They are asked to approve that so many people are
    matched and scored. The same command goes on with what was interrupted.

        interlace predict bank/runs/credit-1a2b3c4d --table bank=new.csv

    What comes out: one row for each person of the active party's table, with its id, the
    `prediction`, for classes a `probability` each, and the `model` that was used: `joint`, `joint
    in part` where a partner's view was missing, `alone`, or `none` where the run trained no model
    for those the partners lack. After a horizontal training, one row for each person of every
    table, with its `party`.
    """
    tables = named_tables(table)
    if out.suffix not in (".csv", ".parquet"):
        raise JobError(f"scores cannot be written as '{out.suffix}'; name a .csv or .parquet file")

    if out.resolve() in {Path(path).resolve() for path in tables.values()}:
        raise JobError(f"{out} is one of the tables to score; write the scores elsewhere by --out")
    if not out.resolve().parent.is_dir():
        raise JobError(f"{out} cannot be written: there is no folder {out.parent}")

    if (run / "contract.json").exists():
        _over_sites(run.resolve(), tables, out, most=most, yes=yes)
        return
    from interlace.serve.batch import predict as score

    doubts: list[str] = []
    _write(score(run, tables, tell=doubts.append), out)
    warn(doubts)


def _over_sites(run: Path, tables: Mapping[str, str], out: Path, *, most: int, yes: bool) -> None:
    """Have the partners' sites help to score a table, and take up the scores."""
    from interlace.cli.submit import hand_in, may_score, told
    from interlace.methods.catalogue import is_horizontal
    from interlace.serve.batch import at_each_party
    from interlace.sites.folder import PartyFolder

    folder = PartyFolder.open(run.parent.parent)
    agreed = folder.run(run.name).contract
    if set(tables) != {folder.name}:
        raise JobError(
            "over sites each partner's own file names its table; give yours alone: "
            f"--table {folder.name}=PATH"
        )
    if is_horizontal(agreed.method.name):
        files, at = {folder.name: folder.read()}, {folder.name: run}
        doubts: list[str] = []
        seed = agreed.seeds[0]
        _write(at_each_party(agreed.method, files, tables, at, seed, tell=doubts.append), out)
        warn(doubts)
        return
    may_score(folder, agreed)
    contract, people = _contract(folder, run, tables[folder.name], most)
    from interlace.sites import submission

    one = folder.run(contract.run)
    status = one.status
    if status.state != "finished":
        one.path.mkdir(parents=True, exist_ok=True)
        people.keep(one.path)
        job = hand_in(folder, contract, yes=yes)
        try:
            status = submission.watch(folder, contract, job, on_state=told)
        except KeyboardInterrupt:
            say("\nNo longer followed; it goes on. The same command takes up the scores.")
            raise typer.Exit(130) from None
    if status.state != "finished":
        show(Text.assemble((f"{status.state}  ", "bold red"), status.reason))
        anew = status.state in ("refused", "failed")
        say(f"The same command {'begins anew, for all to approve' if anew else 'goes on with it'}")
        raise typer.Exit(1)
    _write(read_scores(one), out)
    people.model_copy(update={"taken": True}).keep(one.path)


def _contract(folder: PartyFolder, run: Path, table: str, most: int) -> tuple[Contract, People]:
    """What the partners are asked for a table: as before, where that has not come to its end."""
    from interlace.job.spec import absolute
    from interlace.runner import make_party
    from interlace.serve.batch import Trained
    from interlace.serve.doubts import left_out
    from interlace.sites.columns import misfit, unread
    from interlace.sites.folder import People

    trained = Trained.read(run)
    table = absolute(table, Path.cwd())
    file = folder.read().model_copy(update={"table": table})
    party = make_party(folder.name, file, label_needed=False)
    if why := misfit(party, folder.run(run.name)):
        raise JobError(why)
    warn([*left_out(party), *unread(party, folder.run(run.name))])
    people = People(table=table, digest=party.table)
    for before in folder.runs():
        scores = before.contract.scores
        if (
            scores is not None
            and (scores.run, scores.batch) == (run.name, most)
            and (before.path / "people.json").exists()  # else a partner asked in our name
            and People.of(before.path) == people
            and before.status.state not in ("refused", "failed")
            and (before.status.state != "finished" or before.scores.exists())
        ):
            return before.contract, people
    agreed = folder.run(run.name).contract
    mark = secrets.token_hex(4)
    return agreed.to_score(len(party), trained.seed, batch=most, mark=mark), people


def read_scores(run: RunFolder) -> pl.DataFrame:
    """The scores that a run over sites left.

    Raises:
        JobError: they are not there.
    """
    import polars as pl

    if not run.scores.exists():
        raise JobError(f"{run.scores} is not there; begin anew by `interlace predict`")
    return pl.read_parquet(run.scores)


def _write(scores: pl.DataFrame, out: Path) -> None:
    content = io.BytesIO()
    scores.write_csv(content) if out.suffix == ".csv" else scores.write_parquet(content)
    write_whole(out, content.getvalue())
    say(f"{out}: {scores.height:,} people")
    say_models(scores)


def say_models(scores: pl.DataFrame) -> None:
    """Say by which models people were scored."""
    used = dict(scores["model"].value_counts().iter_rows())
    for model, meaning in _MODELS.items():
        if model in used:
            say(f"{used[model]:>9,} {model:<13} {meaning}")


_MODELS = {
    "global": "scored at their own party with the model that all trained",
    "joint": "scored from every party's view that the method takes",
    "joint in part": "a partner lacks them: scored by the same model from the views there are",
    "alone": "a partner lacks them: scored by the active party's own model",
    "none": "a partner lacks them, and the run trained no model of the active party alone",
}


def named_tables(options: Sequence[str]) -> dict[str, str]:
    """Tables by party, from options ``PARTY=PATH``.

    Raises:
        JobError: an option names no party and table, or two name one party.
    """
    tables = dict(_named(text) for text in options)
    if len(tables) < len(options):
        raise JobError("a party is given two tables; give one for each party")
    return tables


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise JobError(f"'{text}' names no party and table; write PARTY=PATH")
    return name, path
