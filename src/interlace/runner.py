"""A run: from a job to trained models, their utility, what left, and the report; resumable.

A run folder holds::

    job.yaml                         the job as it was run
    results.json                     what it came to, written after every finished fit
    report.html                      the same to look at
    parties/<name>/ledger.sqlite     what left and entered that party
                   models/           its own parts of the models
                   checkpoints/      its own parts of a fit that is not finished
                   alignment/        its own rows of the shared people
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import interlace
from interlace.align import SESSION
from interlace.assess.utility import evaluate
from interlace.errors import InterlaceError, JobError
from interlace.federation import Federation
from interlace.job.results import (
    EpochResult,
    FitResult,
    Flow,
    Machine,
    ModelResult,
    PartyResult,
    Results,
)
from interlace.job.spec import Job, MethodChoice, PartyFile, located, read_job, shown, write_job
from interlace.methods import Method
from interlace.methods.base import Epoch
from interlace.methods.catalogue import accepted, build_method, entry
from interlace.party import Party
from interlace.report import write_report

Progress = Callable[[str, float], None]


def run(
    job: Job | str | Path,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    command: str = "",
) -> Results:
    """Run a job and write its folder.

    Args:
        job: A job, or the path of its file.
        folder: The run folder; by default ``runs/<job's name>``.
        resume: Go on with a run that was stopped, to the result it would have had.
        progress: Told what is being done, and which share of the whole is behind.
        command: How the run was started, for the report.

    Returns:
        The results, also in ``results.json``, with the page in ``report.html``.

    Raises:
        JobError: the job does not fit together, or the folder holds another run.
        DataError: a table, column or label is not usable.
        AlignmentError: too few people are shared.
    """
    source = "" if isinstance(job, Job) else str(job)
    job = located(job, Path.cwd()) if isinstance(job, Job) else read_job(Path(job))
    folder = Path(folder) if folder is not None else default_folder(job)
    command = command or f"interlace run {source or 'job.yaml'}"
    return _Run(job, folder, resume, progress or (lambda _what, _done: None), command).go()


def default_folder(job: Job) -> Path:
    """Where a job runs unless told otherwise."""
    return Path("runs") / job.name


def make_party(name: str, file: PartyFile, *, label_needed: bool = True) -> Party:
    """A party from its file; people to be scored need no label."""
    return Party(
        name,
        file.table,
        id=file.id,
        label=file.label,
        columns=file.columns,
        categories=file.categories,
        task=file.task,
        policy=file.policy,
        label_needed=label_needed,
    )


class _Run:
    def __init__(
        self, job: Job, folder: Path, resume: bool, progress: Progress, command: str
    ) -> None:
        self.job, self.folder, self.progress, self.command = job, folder, progress, command
        self.started = time.perf_counter()
        self.before: Results | None = None
        # Wrong names and settings should show before anything long begins.
        self.choices = [job.method, *compared(job)]
        for choice in self.choices:
            build_method(choice.name, choice.settings)
        self._claim(resume)

    def _claim(self, resume: bool) -> None:
        """Take the run folder, or find the run in it that is to go on."""
        kept = self.folder / "job.yaml"
        if kept.exists() and _learnt_something(self.folder):
            if not resume:
                raise JobError(
                    f"the run folder {self.folder} already exists; go on with it by --resume, or "
                    "choose another by --out"
                )
            if read_job(kept) != self.job:
                raise JobError(
                    f"{self.folder} holds a run of another job; run the job as it was, or choose "
                    "another folder by --out"
                )
            if (self.folder / "results.json").exists():
                self.before = Results.read(self.folder / "results.json")
            return
        if not kept.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise JobError(
                    f"{self.folder} exists and is not a run folder; choose another by --out"
                )
            if resume:
                raise JobError(f"there is no run in {self.folder} to go on with")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_job(self.job, kept)
        except OSError as e:
            raise InterlaceError(f"{self.folder} cannot be written: {e.strerror}") from e

    def go(self) -> Results:
        """Match people, fit every model for every seed, and write results and report."""
        if self.before is not None and self.before.finished:
            write_report(self.before, self.folder / "report.html")
            return self.before
        self.progress("reading the parties' tables", 0.0)
        parties = [make_party(name, file) for name, file in self.job.parties.items()]
        federation = Federation.simulate(
            parties,
            active=self.job.active,
            wire=self.job.wire,
            seed=self.job.seeds[0],
            folder=self.folder,
            protocol=self.job.align.protocol,
            reveal=self.job.align.reveal,
        )
        federation.label_plan  # noqa: B018 - a wrong label should show before people are matched
        self.progress("matching people privately", 0.0)
        federation.align()
        views = {seed: federation.split(self.job.test, seed=seed) for seed in self.job.seeds}
        results = self._results(parties, federation, *views[self.job.seeds[0]])
        fits = [
            (model, choice, seed)
            for model, choice in zip(results.models, self.choices, strict=True)
            if model.skipped is None
            for seed in self.job.seeds
        ]
        for number, (model, choice, seed) in enumerate(fits):
            if any(fit.seed == seed for fit in model.fits):
                continue
            tag = f"{choice.name}-{seed}"
            method = build_method(choice.name, choice.settings)
            doing, epochs = f"{model.title}, seed {seed}", getattr(method, "epochs", 1)

            def on_epoch(
                epoch: Epoch, done: int = number, doing: str = doing, epochs: int = epochs
            ) -> None:
                share = min(1.0, epoch.number / epochs)
                self.progress(f"{doing}, epoch {epoch.number}", (done + share) / len(fits))

            self.progress(doing, number / len(fits))
            train, test = views[seed]
            began = time.perf_counter()
            method.fit(train.fresh(seed, tag), checkpoint=tag, on_epoch=on_epoch)
            fit = self._measure(method, federation, test, seed, tag, time.perf_counter() - began)
            method.save(tag)
            model.fits.append(fit)
            if model.role == "method" and seed == self.job.seeds[0]:
                results.flows += _flows(federation, tag)
                for party_result in results.parties:
                    own = next(p for p in parties if p.name == party_result.name)
                    party_result.privacy = own.boundary.accounts()
            self._write(results, parties)
            for party in parties:
                shutil.rmtree(party.path("checkpoints", tag), ignore_errors=True)
        results.finished = True
        self._write(results, parties)
        write_report(results, self.folder / "report.html")
        self.progress("done", 1.0)
        return results

    def _results(
        self, parties: list[Party], federation: Federation, train: Federation, test: Federation
    ) -> Results:
        if self.before is not None:
            return self.before
        plan = federation.label_plan
        y = test.y
        alignment = federation.alignment
        models = []
        for i, choice in enumerate(self.choices):
            about = entry(choice.name)
            role = "method" if i == 0 else about.role
            models.append(
                ModelResult(
                    name=choice.name,
                    title=about.title,
                    role=role,
                    explanation=about.explanation,
                    skipped=_why_not(choice.name, federation),
                )
            )
        return Results(
            name=self.job.name,
            description=self.job.description,
            task=plan.task,
            label=", ".join(federation.active.labels_columns),
            classes=len(plan.classes),
            positives=float(y.double().mean()) if plan.task == "binary" else None,
            parties=[_party_result(p, federation) for p in parties],
            shared_by_all=len(alignment.common),
            trained_on=len(train.shared().labelled().rows),
            tested_on=len(test.rows),
            models=models,
            flows=_flows(federation, SESSION),  # the ledger may hold a fit that was stopped too
            seeds=self.job.seeds,
            job=shown(self.job),
            command=self.command,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=Machine(
                interlace=interlace.__version__,
                python=platform.python_version(),
                torch=version("torch"),
                platform=f"{platform.system()} {platform.machine()}",
                cores=os.cpu_count() or 1,
            ),
        )

    def _measure(
        self,
        method: Method,
        federation: Federation,
        test: Federation,
        seed: int,
        tag: str,
        seconds: float,
    ) -> FitResult:
        plan = federation.label_plan
        utility = evaluate(
            plan.task, test.y.numpy(), method.outputs(test), classes=len(plan.classes)
        )
        summary = federation.active.boundary.ledger.summary(tag)
        return FitResult(
            seed=seed,
            metrics=utility.metrics,
            omitted=utility.omitted,
            curves=utility.curves,
            history=[EpochResult(**vars(e)) for e in method.history_],
            seconds=seconds,
            rounds=sum(s.messages for s in summary if s.sender == federation.active.name),
            messages=sum(s.messages for s in summary),
            bytes=sum(s.bytes_after for s in summary),
        )

    def _write(self, results: Results, parties: list[Party]) -> None:
        results.seconds += time.perf_counter() - self.started
        self.started = time.perf_counter()
        for party in results.parties:
            own = next(p for p in parties if p.name == party.name)
            party.ledger_head = own.boundary.ledger.head
        try:
            results.write(self.folder / "results.json")
        except OSError as e:
            raise InterlaceError(
                f"{self.folder / 'results.json'} cannot be written: {e.strerror}; what was there "
                "is intact. Free some space, then resume"
            ) from e


def _learnt_something(folder: Path) -> bool:
    """Whether a run got so far that there is something to lose; until then it may begin anew."""
    return (folder / "results.json").exists() or any(folder.glob("parties/*/checkpoints/*/*"))


def compared(job: Job) -> list[MethodChoice]:
    """The baselines of a job, each with the method's own settings where it takes them."""
    if job.compare == "none":
        return []
    chosen = job.compare
    if chosen == "all":
        names = ["active_alone", "mean_imputation", "pooled"]
        if job.method.name not in ("split", "agg"):
            names.insert(1, "shared_only")
        chosen = [MethodChoice(name=n) for n in names if n != job.method.name]
    return [
        MethodChoice(name=c.name, **{**accepted(c.name, job.method.settings), **c.settings})
        for c in chosen
    ]


def _why_not(name: str, federation: Federation) -> str | None:
    """Why a baseline cannot be fitted in this federation, or ``None``."""
    if name == "active_alone" and not federation.active.columns:
        return "the active party has no columns of its own"
    if name == "mean_imputation":
        labelled = federation.labelled()
        if len(labelled.shared().rows) == len(labelled.rows):
            return "every labelled person is shared, so no view is missing"
    return None


def _party_result(party: Party, federation: Federation) -> PartyResult:
    alignment = federation.alignment
    active = party is federation.active
    shared = len(alignment.common) if active else len(party.shared_with(federation.active.name))
    held_by_a_partner = int(alignment.holders.any(1).sum()) if active else shared
    return PartyResult(
        name=party.name,
        active=active,
        people=len(party),
        columns=len(party.columns),
        shared=shared,
        alone=len(party) - held_by_a_partner,
        learnt=alignment.report.learnt[party.name],
        id_notes=party.keys.report.notes,
    )


def _flows(federation: Federation, session: str) -> list[Flow]:
    return [
        Flow(
            session=s.session,
            operation=s.operation,
            kind=s.kind,
            sender=s.sender,
            receiver=s.receiver,
            messages=s.messages,
            bytes_before=s.bytes_before,
            bytes_after=s.bytes_after,
            shape=s.shape,
            dtype=s.dtype,
            guard=s.guard,
        )
        for s in federation.active.boundary.ledger.summary(session)
    ]
