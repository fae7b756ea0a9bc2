"""The job, which all parties share, and the party file, which none shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from interlace.boundary import Policy
from interlace.data.ids import IdRule, id_line
from interlace.data.suggest import did_you_mean
from interlace.data.tables import source_name
from interlace.errors import JobError
from interlace.files import write_whole


class PartyFile(BaseModel):
    """One party's own file (``party.yaml``): where its table lies and what may leave it.

    In a simulation the job holds it inline, or names it.
    """

    model_config = ConfigDict(extra="forbid")

    table: str | None = Field(
        default=None,
        description="CSV, Parquet or Feather file (relative to this file), "
        "`duckdb:///file.db?table=name`, or `sql:SELECT ...` that DuckDB can run. None: a party "
        "that only drives a horizontal federation.",
    )
    id: str | list[str] | IdRule | None = Field(
        default="id",
        description="The column, or columns, that say who a row is about; or a rule with "
        "`columns`, `strip`, `case`, `zeros`, `duplicates`, `blanks`. `null` where rows have none, "
        "as a horizontal federation matches nobody.",
    )
    label: str | list[str] | None = Field(
        default=None, description="The column to learn, at the party that has it."
    )
    task: Literal["auto", "binary", "multiclass", "multilabel", "regression"] = Field(
        default="auto", description="What the label is; `auto` reads it off the label."
    )
    columns: list[str] | None = Field(
        default=None, description="Columns to learn from; by default all but ids and label."
    )
    categories: list[str] = Field(
        default_factory=list, description="Columns whose numbers are codes of categories."
    )
    secret: int | None = Field(
        default=None,
        ge=0,
        description="Repeats what this party draws: its networks' first weights, its guards' "
        "noise. Nobody else may know it. By default drawn anew, and kept in the run's folder.",
    )
    policy: Policy = Field(
        default_factory=Policy, description="What may leave this party, and through which guards."
    )

    @field_validator("id", mode="before")
    @classmethod
    def _rule(cls, id: Any) -> Any:
        """What is wrong with a rule is told as such, and not as that it is no text and no list."""
        if isinstance(id, dict):
            return IdRule.model_validate(id)
        names = id if isinstance(id, list) else [id]
        if id is None or isinstance(id, IdRule) or all(isinstance(n, str) for n in names):
            return id
        example = id_line(["cust_no"], zeros="strip")
        raise ValueError(f"a column's name, a list of names, or a rule is due, as in {example}")


class MethodChoice(BaseModel):
    """A method by name, with its hyper-parameters beside the name."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters as the job gives them."""
        return dict(self.model_extra or {})


class Matching(BaseModel):
    """How the parties find their shared people."""

    model_config = ConfigDict(extra="forbid")

    protocol: Literal["auto", "dh", "kkrt"] = Field(
        default="auto", description="Private set intersection; `auto` goes by the tables' size."
    )
    reveal: Literal["pairs", "common"] = Field(
        default="pairs",
        description="`pairs`: the active party learns whom it shares with each party; "
        "`common`: only whom all parties share.",
    )


class Job(BaseModel):
    """What all parties agree to run (``job.yaml``)."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[^./\\][^/\\]*$", description="Names the run's folder and report.")
    description: str = Field(default="", description="A sentence for the report's head.")
    parties: dict[str, PartyFile] = Field(
        description="Each party's file inline, or the path of its `party.yaml`."
    )
    purpose: str = Field(
        default="", description="What the model is for, in a word or two that policies can name."
    )
    active: str | None = Field(
        default=None,
        description="The party that drives; by default the one with a label, or in a horizontal "
        "federation the one without a table, or the first.",
    )
    method: MethodChoice = Field(
        default=MethodChoice(name="split"),
        description="The method's name, or `name` with its hyper-parameters beside it; `auto` "
        "takes, in a simulation, the one that `interlace inspect` recommends, and the results say "
        "why.",
    )
    compare: list[MethodChoice] | Literal["all", "none"] = Field(
        default="all",
        description="Baselines beside it: a name or a list of names, `all` that fit, or `none`.",
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(
        default=[0, 1, 2],
        min_length=1,
        description="One training per seed, with other people held out; intervals are over them.",
    )
    test: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of the shared, labelled people held out; in a horizontal federation of "
        "each party's.",
    )
    truth: str | None = Field(
        default=None,
        description="For a simulation: a table with the active party's id and label columns, of "
        "people whose label the active party does not have. Nobody learns from it; it tells how "
        "right a method is that gives such people a label.",
    )
    align: Matching = Field(default_factory=Matching, description="How people are matched.")
    wire: bool = Field(
        default=False, description="Encode every message as real sites would (slower, same result)."
    )
    wait: float = Field(
        default=24.0,
        gt=0,
        description="Hours that a run over sites waits for an approval, or for a partner that is "
        "away, before it ends in a state that can go on.",
    )

    @field_validator("compare", mode="before")
    @classmethod
    def _names(cls, compare: Any) -> Any:
        if compare in ("all", "none") or isinstance(compare, list):
            return compare
        if isinstance(compare, str | dict | MethodChoice):
            return [compare]
        raise ValueError("a name, a list of names, `all` or `none` is due")

    @field_validator("seeds")
    @classmethod
    def _once(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed stands there twice")
        return seeds

    @model_validator(mode="after")
    def _other_methods(self) -> Self:
        names = [self.method.name]
        names += [c.name for c in self.compare] if isinstance(self.compare, list) else []
        for i, name in enumerate(names):
            if name in names[:i]:  # models and ledgers are kept by method and seed
                raise ValueError(f"`compare` names '{name}', which is there already")
        return self

    @field_validator("parties", mode="before")
    @classmethod
    def _not_names_alone(cls, parties: Any) -> Any:
        if isinstance(parties, list):
            raise ValueError(
                "a list of names stands for organisations on machines of their own, whom "
                "`interlace submit` asks; a run on this machine needs each party's file, as in "
                f"`{parties[0] if parties else 'bank'}: {{table: ...}}`"
            )
        return parties

    @field_validator("parties")
    @classmethod
    def _two(cls, parties: dict[str, PartyFile]) -> dict[str, PartyFile]:
        if len(parties) < 2:
            raise ValueError("a federation takes at least two parties")
        return parties


class _OneOfEach(yaml.SafeLoader):
    """YAML that refuses a key given twice, as two parties of one name would be."""


def _mapping(loader: _OneOfEach, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise JobError(
                f"'{key}' stands twice in {key_node.start_mark.name} "
                f"(line {key_node.start_mark.line + 1}); every party needs its own name"
            )
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node))


_OneOfEach.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_job(path: Path) -> Job:
    """Read a job and the party files that it names. Tables' paths are made absolute.

    Raises:
        JobError: a file is missing or not YAML, or a field is unknown or wrong; the message names
            the file and the field.
    """
    data = _read_yaml(path)
    parties = data.get("parties")
    files: dict[str, Path] = {}
    if isinstance(parties, dict):
        for name, entry in parties.items():
            base = path.parent
            if isinstance(entry, str):
                files[name] = path.parent / entry
                entry, base = _read_yaml(files[name]), files[name].parent
            if isinstance(entry, dict) and isinstance(entry.get("table"), str):
                entry = {**entry, "table": absolute(entry["table"], base)}
            parties[name] = entry
    if isinstance(data.get("truth"), str):
        data["truth"] = absolute(data["truth"], path.parent)
    try:
        return Job.model_validate(data)
    except ValidationError as e:
        raise JobError(_readable(e, Job, path, files)) from e


M = TypeVar("M", bound=BaseModel)


def read_party_file(path: Path) -> PartyFile:
    """Read one party's own file; its table's path is made absolute.

    Raises:
        JobError: as for :func:`read_job`.
    """
    data = _read_yaml(path)
    if isinstance(data.get("table"), str):
        data["table"] = absolute(data["table"], path.parent)
    try:
        return PartyFile.model_validate(data)
    except ValidationError as e:
        raise JobError(_readable(e, PartyFile, path, {})) from e


def read_public(path: Path, model: type[M], **more: Any) -> M:
    """Read of a job only what all its parties may see.

    Args:
        path: The job's file. Its ``parties`` may be a list of names.
        model: Takes the names of the parties and all that is not private to one of them.
        more: Further fields of the model. One of a value of ``None`` is left as the job has it.

    Raises:
        JobError: as for :func:`read_job`.
    """
    data = _read_yaml(path)
    parties = data.get("parties")
    if isinstance(parties, dict):
        files = {
            n: _read_yaml(path.parent / f) if isinstance(f, str) else f for n, f in parties.items()
        }
        holders = [n for n, f in files.items() if isinstance(f, dict) and f.get("label")]
        if len(holders) == 1:
            data.setdefault("active", holders[0])
        method, without = data.get("method"), [n for n, f in files.items() if not _has_table(f)]
        if isinstance(method, dict) and method.get("protocol") == "arbiter" and len(without) == 1:
            data.setdefault("arbiter", without[0])
        data["parties"] = list(parties)
    public = {k: v for k, v in data.items() if k in model.model_fields or k not in Job.model_fields}
    try:
        return model.model_validate(public | {k: v for k, v in more.items() if v is not None})
    except ValidationError as e:
        raise JobError(_readable(e, model, path, {})) from e


def _has_table(file: Any) -> bool:
    return isinstance(file, dict) and bool(file.get("table"))


def write_job(job: Job, path: Path) -> None:
    """Write a job as YAML, leaving out what is as by default; tables relative to the file.

    It is written whole or not at all.
    """
    data = job.model_dump(mode="json", exclude_defaults=True)
    base = path.parent.resolve()
    for entry, field in _named_tables(data):
        if (table := Path(entry[field])).is_absolute() and table.is_relative_to(base):
            entry[field] = str(table.relative_to(base))
    write_whole(path, _yaml(data).encode())


def shown(job: Job) -> str:
    """The job as YAML for a page that others may see: tables by their file's name alone,
    queries and secrets not at all."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    for entry in data["parties"].values():
        entry.pop("secret", None)
    for entry, field in _named_tables(data):
        entry[field] = Path(source_name(entry[field]) or "").name
    return _yaml(data)


def _named_tables(data: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where a job as it is written names a table: the mapping, and the field in it."""
    found = [(entry, "table") for entry in data["parties"].values() if "table" in entry]
    return found + ([(data, "truth")] if "truth" in data else [])


def _yaml(data: dict[str, Any]) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def located(job: Job, base: Path) -> Job:
    """The job with its tables' relative paths taken from ``base``."""
    parties = {
        name: file.model_copy(update={"table": file.table and absolute(file.table, base)})
        for name, file in job.parties.items()
    }
    truth = job.truth and absolute(job.truth, base)
    return job.model_copy(update={"parties": parties, "truth": truth})


def absolute(table: str, base: Path) -> str:
    """Where a table lies, whatever folder we are in later; a relative path is from ``base``."""
    if table.startswith(("sql:", "duckdb:")):
        return table
    return str((base / table).resolve())


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeError as e:
        raise JobError(f"{path} is not YAML: it is not text in UTF-8") from e
    try:
        loader = _OneOfEach(text)
        loader.name = str(path)  # for the errors
        data = loader.get_single_data()
    except yaml.YAMLError as e:
        raise JobError(f"{path} is not YAML: {_wrong(e)}") from e
    if not isinstance(data, dict):
        raise JobError(f"{path} holds no fields; see `interlace run --help` for an example")
    return data


def _wrong(error: yaml.YAMLError) -> str:
    """What is wrong with the YAML, by line and column."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).splitlines()[0]

    def place(mark: yaml.Mark) -> str:
        return f"line {mark.line + 1}, column {mark.column + 1}"

    begun, start = "", error.context_mark
    if start is not None and start.line < error.problem_mark.line:
        begun = f", {error.context} from {place(start)} on"
    return (
        f"{place(error.problem_mark)}: {error.problem}{begun}. A name with ` #` or `: `, or that "
        "begins with a sign such as # or [, needs quotes, as in `columns: ['# calls']`"
    )


_ID_OPTIONS = IdRule.model_fields.keys() - PartyFile.model_fields.keys()


def _readable(
    error: ValidationError, model: type[BaseModel], job: Path, files: dict[str, Path]
) -> str:
    """All complaints, one a clause, each with the field's path and the file where that changes.

    Args:
        error: What is wrong.
        model: What was to be read.
        job: The job's file.
        files: The parties' files, of those that have one of their own.
    """
    said, last = "", None
    for e in error.errors():
        branch = "[" in str(e["loc"][-1:])  # of several that a value could be
        if branch and e["type"] == "literal_error" and isinstance(e["input"], list):
            continue  # what is wrong in the list is told by itself
        loc, file = e["loc"], job
        if len(loc) > 2 and loc[0] == "parties" and loc[1] in files:
            file, loc = files[str(loc[1])], loc[2:]
        where = ".".join(str(p) for p in loc if "[" not in str(p)) or "the file"
        text = e["msg"].removeprefix("Value error, ")
        if e["type"] == "extra_forbidden":
            text = "there is no such field"
            name = e["loc"][-1]
            if e["loc"][:1] == ("parties",) and len(e["loc"]) == 3 and name in _ID_OPTIONS:
                line = id_line(["cust_no"], **{str(name): e["input"]})
                text = f"`{name}` belongs inside `id:`, as in {line}"
            elif known := _fields(model, e["loc"][:-1]):
                text += f". {did_you_mean(str(name), known, what='fields')}"
        start = "" if file == last else f"{file}: "
        end = "" if not said else " " if said.endswith((".", "?")) else "; "
        said += f"{end}{start}`{where}`: {text[:1].lower()}{text[1:]}"
        last = file
    return said


def _fields(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The fields that may stand at a place of a job or party file, if it has fields."""
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field is not None else None
        if field is None or inner is None:
            return []
        if get_origin(field.annotation) is dict:
            next(parts, None)  # the name of one of them
        model = inner
    return list(model.model_fields)


def _model_in(kind: Any) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(_model_in, get_args(kind))), None)
