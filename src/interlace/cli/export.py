"""``interlace export``: a model of a run as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.console import say
from interlace.errors import JobError


def export(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    model: Annotated[
        str | None,
        typer.Option(help="Which of the run's models, as under `compare`; by default its method."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of which training; by default the first seed's.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where the model goes; replaced if it is there.")
    ] = Path("model.onnx"),
) -> None:
    """Write what the active party can score by without a partner as ONNX.

        interlace export runs/caravan --model active_alone --out caravan.onnx

    That is a model of its columns alone (`active_alone`, `own_columns`, and what distillation
    methods train), or its share of scores that are added up (`agg`, linear models, scorecards).
    Neither tables nor partners are needed. A model that asks partners about each person cannot be
    written so; score with `interlace predict`.

    What comes out: one file that reads the raw columns, one input each, preprocessing included; the
    inputs and the output are listed.
    """
    if out.suffix != ".onnx":
        raise JobError(f"a model cannot be written as '{out.suffix}'; name a .onnx file")
    if not out.resolve().parent.is_dir():
        raise JobError(f"{out} cannot be written: there is no folder {out.parent}")

    from interlace.serve.export import export as write

    made = write(run, out, model=model, seed=seed)
    say(f"{out}: {made.graph.output[0].name} from {', '.join(i.name for i in made.graph.input)}")
