"""A contract: what all parties of a run agree to, and nothing that is one party's own.

It is the public part of a job, with the version of the package that carries it out. Its digest is
what an approval signs, so that no word of it can be changed afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

import interlace
from interlace.boundary.policy import MOST_HOURS
from interlace.errors import JobError, Refused
from interlace.job.spec import Job, Matching, MethodChoice, PartyFile, read_public

# What NVIDIA FLARE takes for a site's name, and a certificate for a common name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
MOST_BYTES = 2**16  # of a contract as JSON
LARGEST = 1e18  # number in it; none is infinite or no number at all
MOST_PARTIES = 100


def check_site_name(name: str) -> str:
    """Make sure that a party on real sites can be called so.

    Raises:
        JobError: it cannot.
    """
    if not NAME.fullmatch(name) or name.lower() == "server":
        raise JobError(
            f"'{name[:70]}' cannot be a site's name: it takes up to 63 letters, digits, '-' and "
            "'_', starts with a letter or digit, and is not 'server'"
        )
    return name


def alike(name: str) -> str:
    """A site's name without what people overlook in it."""
    return name.lower().replace("-", "_")


class Scoring(BaseModel):
    """What people are scored with, how many at most, and how they are asked about.

    Args:
        run: The finished run whose models score.
        people: Most people whom the partners are asked about, each counted as often as asked. Of a
            table, each may be asked about twice, since a run that goes on after its process ended
            has lost the answers that were under way.
        batch: The people of a table are matched first, and then asked about so many at a time;
            ``None`` where questions about people come one by one, as long as the service runs.
        mark: Tells one such table from the next.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(min_length=1, max_length=100)
    people: int = Field(ge=1, le=10**12)
    batch: int | None = Field(default=None, ge=1, le=10**12)
    mark: str = Field(default="", pattern=r"^[0-9a-f]{0,32}$")


_NOTHING = PartyFile()
_OF_A_JOB = Job.model_fields.keys() - {"parties", "truth", "wire"}


class Contract(BaseModel):
    """What the parties of one run agree to; its fields are those of a job.

    ``classes`` is how many classes the label has (1: a number is learnt); the party that drives
    states it, since what the others send hangs on it. ``arbiter`` is the party that takes part
    without a table, where a method has one hold the key (``protocol: arbiter``). ``scores`` is
    there where nothing is trained, and a finished run's models answer for people instead.
    ``version`` is the package's: all sites run the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,80}$")
    description: str = Field(default="", max_length=2000)
    purpose: str = Field(default="", max_length=200)
    parties: list[str] = Field(min_length=2, max_length=MOST_PARTIES)
    active: str
    method: MethodChoice = MethodChoice(name="split")
    compare: list[MethodChoice] | Literal["all", "none"] = "all"
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(
        default=[0, 1, 2], min_length=1, max_length=1000
    )
    test: float = Field(default=0.25, gt=0, lt=1)
    align: Matching = Field(default_factory=Matching)
    wait: float = Field(default=24.0, gt=0, le=MOST_HOURS)
    classes: int | None = Field(default=None, ge=1, le=10_000)
    arbiter: str | None = None
    scores: Scoring | None = None
    version: str = interlace.__version__

    @field_validator("parties")
    @classmethod
    def _names(cls, parties: list[str]) -> list[str]:
        for name in parties:
            try:
                check_site_name(name)
            except JobError as e:
                raise ValueError(str(e)) from e
            if parties.count(name) > 1:
                raise ValueError(f"'{name}' stands there twice; every party needs its own name")
        if len({alike(name) for name in parties}) < len(parties):
            raise ValueError("names that differ by case, or by '-' and '_', alone look alike")
        return parties

    @field_validator("description")
    @classmethod
    def _one_line(cls, description: str) -> str:
        return " ".join(description.split())

    @model_validator(mode="after")
    def _driver(self) -> Self:
        if self.active not in self.parties:
            raise ValueError(f"`active` is '{self.active}', which is not among `parties`")
        if self.arbiter is not None and self.arbiter not in self.passive:
            raise ValueError(f"`arbiter` is '{self.arbiter}', which is not among those who answer")
        return self

    @model_validator(mode="after")
    def _legible(self) -> Self:
        """What people read before they approve can look like nothing else, nor be hidden."""
        for value in _values(self.model_dump()):
            if isinstance(value, str) and not value.isprintable():
                raise ValueError("texts are single lines of characters that can be printed")
            if isinstance(value, int | float) and not abs(value) < LARGEST:
                raise ValueError(f"numbers lie between -{LARGEST:.0e} and {LARGEST:.0e}")
        return self

    @model_validator(mode="after")
    def _a_job(self) -> Self:
        """What no job can be, no contract can be."""
        try:
            Job(**self.model_dump(include=_OF_A_JOB), parties=dict.fromkeys(self.parties, _NOTHING))
        except ValidationError as e:
            raise ValueError(e.errors()[0]["msg"].removeprefix("Value error, ")) from e
        return self

    @property
    def text(self) -> str:
        """The contract as JSON in its one canonical form: sorted keys, no spaces, ASCII."""
        # A run reads, and is called, as it was before there were these.
        new = {"arbiter": self.arbiter, "scores": self.scores}
        without = {name for name, value in new.items() if value is None}
        fields = self.model_dump(mode="json", exclude=without)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """BLAKE2b of the canonical form, 32 bytes as hexadecimal digits."""
        return blake2b(self.text.encode(), digest_size=32).hexdigest()

    @property
    def run(self) -> str:
        """What the run is called at every party: the job's name and the start of the digest."""
        return f"{self.name}-{self.digest[:8]}".replace(" ", "_")

    @property
    def passive(self) -> list[str]:
        """The parties that answer."""
        return [name for name in self.parties if name != self.active]

    @property
    def partners(self) -> list[str]:
        """Those of them who have a table."""
        return [name for name in self.passive if name != self.arbiter]

    @property
    def online(self) -> bool:
        """Whether it is about a service that answers questions about people."""
        return self.scores is not None and self.scores.batch is None

    def to_score(
        self, people: int, seed: int, *, batch: int | None = None, mark: str = ""
    ) -> Contract:
        """The contract by which this run's models, once trained, score people.

        Args:
            people: Most people whom the partners are asked about.
            seed: Of which training.
            batch, mark: As in :class:`Scoring`.
        """
        changes = {
            "name": f"{self.name[:70]}-scores",
            "parties": [name for name in self.parties if name != self.arbiter],
            "arbiter": None,  # who has done what there was to do
            "compare": "none",
            "seeds": [seed],
            "scores": {"run": self.run, "people": people, "batch": batch, "mark": mark},
            "version": interlace.__version__,
        }
        return Contract(**self.model_dump() | changes)

    @classmethod
    def read(cls, text: str) -> Contract:
        """Read what another party sent, or what was kept.

        Raises:
            Refused: it is not a contract, or too long for one.
        """
        if len(text) > MOST_BYTES:
            raise Refused(f"a contract of {len(text):,} bytes is longer than {MOST_BYTES:,}")
        try:
            return cls.model_validate_json(text)
        except ValidationError as e:
            fault = e.errors()[0]
            where = ".".join(str(p) for p in fault["loc"]) or "the whole"
            told = (
                f"this is not a contract of interlace {interlace.__version__}: `{where}`: "
                f"{fault['msg'].removeprefix('Value error, ')}"
            )
            raise Refused("".join(c if c.isprintable() else " " for c in told)) from e


def _values(value: object) -> Iterator[object]:
    """Every text and number in a value, names of fields too."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _values(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


def read_contract(path: Path, *, submitter: str, classes: int | None = None) -> Contract:
    """The contract that a job file asks for.

    Args:
        path: The job file. Its parties may be names alone; party files' contents are left out.
        submitter: The party that submits it, which drives unless the job says who does.
        classes: How many classes the label has, where the submitter drives and so knows it.

    Raises:
        JobError: the file is not a job, or says what sites cannot do.
    """
    contract = read_public(path, _Asked)
    active = contract.active or submitter
    fields = {name: getattr(contract, name) for name in contract.model_fields_set}
    driven = {"active": active, "classes": classes if active == submitter else None}
    try:
        return Contract(**fields | driven)
    except ValidationError as e:
        faults = "; ".join(
            f"`{'.'.join(map(str, f['loc']))}`: {f['msg'].removeprefix('Value error, ')}"
            for f in e.errors()
        )
        raise JobError(f"{path}: {faults}") from e


class _Asked(Contract):
    """A job file may leave open who drives."""

    active: str | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _driver(self) -> Self:
        return self
