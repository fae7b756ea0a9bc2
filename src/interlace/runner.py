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

import fcntl
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

import interlace
from interlace.align import SESSION
from interlace.assess import MEASURES, evaluate, rightness, true_classes
from interlace.boundary import Kind
from interlace.data.columns import ColumnReport, column_notes, fit_column
from interlace.data.features import FeaturePlan
from interlace.data.ids import notes_once_matched
from interlace.data.images import is_image
from interlace.data.noniid import heterogeneity
from interlace.engines import InProcess
from interlace.errors import InterlaceError, JobError, PartyAway, PolicyError
from interlace.federation import Federation, Rows
from interlace.job.results import (
    Apart,
    Chosen,
    EpochResult,
    FitResult,
    Flow,
    KeptResult,
    Machine,
    ModelResult,
    PartyResult,
    Results,
)
from interlace.job.spec import Job, MethodChoice, PartyFile, located, read_job, shown, write_job
from interlace.methods import Method
from interlace.methods.base import Epoch
from interlace.methods.baselines import Pooled, PooledColumns
from interlace.methods.catalogue import AUTO, accepted, build_method, entry, is_horizontal
from interlace.methods.horizontal.baselines import InOnePlace
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.methods.horizontal.schema import FEWEST
from interlace.methods.horizontal.side import HorizontalSide, Own, clients_of, meet
from interlace.methods.recommend import by_columns, choose, geometry_of, share_names
from interlace.party import Party, Peer, RunSide
from interlace.report import write_report

Progress = Callable[[str, float], None]
Views = dict[int, tuple[Federation, Federation]]  # by seed: who is learnt from, who is held out
Begun = dict[str, dict[str, int]]  # how many people and columns each party has
AGREEMENT = "agreement"  # the session in which clients of a horizontal federation compare columns


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
    if source and (folder / "job.yaml").resolve() == Path(source).resolve():
        raise JobError(
            f"{folder} is where the job itself lies, and a run keeps its own `job.yaml`; choose "
            "another folder by --out"
        )
    command = command or f"interlace run {source or 'job.yaml'}"
    with warnings.catch_warnings():
        # Doubts about units, which every fit has anew: they are in the results.
        warnings.filterwarnings("ignore", message="the numbers of '")
        return _Run(job, folder, resume, progress or (lambda _what, _done: None), command).go()


def drive(
    job: Job,
    federation: Federation,
    *,
    progress: Progress | None = None,
    command: str = "",
) -> Results:
    """Run a job from the active party's seat, over whatever engine its federation has.

    The run folder is the active party's own; a run that was stopped goes on. Every partner keeps
    its part in its own folder.

    Args:
        job: What all have agreed to; of the party files it need hold none but the active one's.
        federation: The active party with its folder, and the partners' names.
        progress: As for :func:`run`; the partners are told too.
        command: How the run was started, for the report.

    Returns, raises: as :func:`run`; and ``PartyFailed`` where a partner cannot go on.
    """
    folder = federation.active.path()
    resume = (folder / "job.yaml").exists() and _learnt_something(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the numbers of '")
        nobody = progress or (lambda _what, _done: None)
        return _Run(job, folder, resume, nobody, command, federation).go()


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
        secret=file.secret,
        label_needed=label_needed,
    )


class _Run:
    def __init__(
        self,
        job: Job,
        folder: Path,
        resume: bool,
        progress: Progress,
        command: str,
        federation: Federation | None = None,
    ) -> None:
        self.job, self.folder, self.progress, self.command = job, folder, progress, command
        self.federation = federation  # None: all parties are simulated here
        self.started = time.perf_counter()
        self.before: Results | None = None
        self.goes_on = False  # whether it was begun before, be it only as far as a checkpoint
        self.asked = job  # `job` has the method that `auto` chose, once people are matched
        self.chosen: Chosen | None = None
        if job.method.name == AUTO:
            if job.method.settings:
                raise JobError("`method: auto` sets the method itself; name a method to set it")
            self.choices: list[MethodChoice] = []
            self.horizontal = False
        else:
            self._settle(job)
        self._claim(resume)

    def _settle(self, job: Job) -> None:
        """Take the job's method and baselines; wrong names and settings show before anything long
        begins."""
        self.job = job
        self.choices = [job.method, *compared(job)]
        self.horizontal = is_horizontal(job.method.name)
        for choice in self.choices:
            if is_horizontal(choice.name) != self.horizontal:
                raise JobError(
                    f"'{choice.name}' cannot be compared with '{job.method.name}': only one of "
                    "them is for a horizontal federation"
                )
            self._build(choice)
        helped = self._build(job.method).helped
        for name, file in job.parties.items():
            needed = not (self.horizontal or helped)
            if self.federation is None and file.table is None and needed:
                raise JobError(f"party '{name}' has no `table:`, which '{job.method.name}' needs")
            others = [other for other in job.parties if other != name]
            names = [c.name for c in self.choices if entry(c.name).role == "method"]
            if why := file.policy.objection(names, others, job.purpose):
                raise PolicyError(f"party '{name}' takes no part in this: {why}")

    def _by_columns(self, parties: Sequence[Party]) -> None:
        """For ``method: auto``, the method that the tables' columns ask for, if they do; a run that
        goes on keeps to its own."""
        self.progress("comparing the parties' tables", 0.0)
        if self.before is not None:
            self.chosen = self.before.chosen
        elif share_names(parties) and (found := by_columns(geometry_of(parties))) is not None:
            self.chosen = Chosen(**found.model_dump())
        if self.chosen is not None:
            self._take(self.chosen)

    def _by_people(self, federation: Federation) -> None:
        """For ``method: auto``, the method for the people whom the parties share."""
        federation.label_plan  # noqa: B018 - a wrong label should show before people are matched
        self.progress("matching people privately", 0.0)
        federation.align()
        self.chosen = Chosen(**choose(federation).model_dump())
        self._take(self.chosen)

    def _take(self, chosen: Chosen) -> None:
        self._settle(self.job.model_copy(update={"method": MethodChoice(name=chosen.method)}))

    def _build(self, choice: MethodChoice) -> Method:
        """A method as the job has it; in a horizontal federation clients draw the test people."""
        made = build_method(choice.name, choice.settings)
        method = made.method if isinstance(made, InOnePlace) else made
        if isinstance(method, HorizontalMethod):
            if method.agreement.validation + self.job.test >= 1:
                raise JobError("`test` and the agreement's `validation` leave nobody to learn from")
            method.agreement = method.agreement.model_copy(update={"test": self.job.test})
        return made

    def _claim(self, resume: bool) -> None:
        """Take the run folder, or find the run in it that is to go on."""
        kept = self.folder / "job.yaml"
        if kept.exists() and _learnt_something(self.folder):
            if not resume:
                raise JobError(
                    f"the run folder {self.folder} already exists; go on with it by --resume, or "
                    "choose another by --out"
                )
            own = {"parties"} if self.federation is not None else set()  # a site's to change
            if read_job(kept).model_dump(exclude=own) != self.job.model_dump(exclude=own):
                raise JobError(
                    f"{self.folder} holds a run of another job; run the job as it was, or choose "
                    "another folder by --out"
                )
            self.goes_on = True
            if (self.folder / "results.json").exists():
                self.before = Results.read(self.folder / "results.json")
            return
        if not kept.exists():
            # On sites a run's folder holds the contract and its approval before the run begins.
            if self.federation is None and self.folder.exists() and any(self.folder.iterdir()):
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
        """Match people, fit every model for every seed, and write results and report.

        Raises:
            JobError: another process is at this run.
        """
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(f"another process is at the run in {self.folder}") from None
            threads = torch.get_num_threads()
            try:
                return self._go()
            finally:
                torch.set_num_threads(threads)

    def _go(self) -> Results:
        if self.before is not None and self.before.finished:
            write_report(self.before, self.folder / "report.html")
            return self.before
        parties, federation = self._federation()
        few_threads(parties)
        me = RunSide(federation.active, federation.active.name)
        about = {"resumed": self.goes_on}
        begun = {me.partner: me.begin(about), **federation.tell(RunSide.begin, about)}
        if self.horizontal:
            views = dict.fromkeys(self.job.seeds, (federation, federation))
        else:
            if self.job.method.name == AUTO:
                self._by_people(federation)
            kind = entry(self.job.method.name).make
            if kind.supervised:
                federation.label_plan  # noqa: B018 - a wrong label should show before people are matched
            self.progress("matching people privately", 0.0)
            federation.align()
            people = {"partial": kind.partial, "labelled": kind.supervised}
            views = {
                seed: federation.split(self.job.test, seed=seed, **people)
                for seed in self.job.seeds
            }
        results = self.before or self._results(begun, federation, views)
        fits = [
            (model, choice, seed)
            for model, choice in zip(results.models, self.choices, strict=True)
            if model.skipped is None
            for seed in self.job.seeds
        ]
        for number, (model, choice, seed) in enumerate(fits):
            if model.skipped is not None or any(fit.seed == seed for fit in model.fits):
                continue
            tag = f"{choice.name}-{seed}"
            method = self._build(choice)
            doing = f"{model.title}, seed {seed}"
            unit = "round" if self.horizontal else "epoch"
            most = getattr(getattr(method, "method", method), f"{unit}s", 1)

            def on_epoch(
                epoch: Epoch, done: int = number, what: str = f"{doing}, {unit}", most: int = most
            ) -> None:
                share = min(1.0, epoch.number / most)
                self.progress(f"{what} {epoch.number}", (done + share) / len(fits))

            def alone(what: str, done: float = number / len(fits), model: str = doing) -> None:
                self.progress(f"{model}: {what}", done)

            if isinstance(federation.engine, InProcess):  # over sites each would be a message
                for party in parties:
                    party.tell = alone
            self.progress(doing, number / len(fits))
            train, test = views[seed]
            began = time.perf_counter()
            try:
                method.fit(train.fresh(seed, tag), checkpoint=tag, on_epoch=on_epoch)
                seconds = time.perf_counter() - began
                model.fits.append(self._measure(method, federation, test, seed, tag, seconds))
            except InterlaceError as e:
                if model.role == "method" or isinstance(e, PartyAway):
                    raise
                model.skipped = str(e)  # a baseline that does not fit must not hold up the run
                federation.let_go()
                self._write(results, parties)
                continue
            method.save(tag)
            if model.role == "method" and seed == self.job.seeds[0]:
                results.flows += _flows(federation, tag)
                model.sheets, model.encryption = method.sheets(), method.schemes()
                accounts = {
                    me.partner: me.account({}),
                    **federation.tell(RunSide.account, {}),
                }
                for party_result in results.parties:
                    party_result.privacy = accounts[party_result.name]["privacy"]
                    for own in (p for p in parties if p.name == party_result.name):
                        read = _columns_read(own, method, tag, train)
                        party_result.column_notes += column_notes(read, own.categories)
                        label = getattr(method, "label_plan_", None)
                        if own is federation.active and label is not None and label.note:
                            party_result.column_notes.append(f"'{label.column}': {label.note}")
                        for column in read:
                            party_result.columns_read.setdefault(column.became, []).append(
                                column.name
                            )
                    if isinstance(method, HorizontalMethod):
                        names = (party_result.name, "all clients")
                        claims = {n: method.privacy_.get(n) for n in names}
                        party_result.privacy |= {
                            f"updates of {n}": c for n, c in claims.items() if c
                        }
            self._write(results, parties)
            me.close({"name": tag})
            for name, ended in federation.tell(RunSide.close, {"name": tag}).items():
                of = next(p for p in results.parties if p.name == name)
                of.ledger_head = ended["ledger_head"]
        results.finished = True
        self._write(results, parties)
        write_report(results, self.folder / "report.html")
        self.progress("done", 1.0)
        return results

    def _federation(self) -> tuple[list[Party], Federation]:
        """The parties that are here, and the federation of all.

        Raises:
            PolicyError: a party's policy keeps back what every run needs.
        """
        parties, federation = self._met()
        # What the method is that `auto` takes may not be known yet.
        known = self.job.method.name != AUTO
        side = getattr(entry(self.job.method.name).make, "side", None) if known else None
        for party in parties:
            if side is not None:
                active = party is federation.active
                party.boundary.expect(side.asked_with if active else side.answers_with)
            matched = not self.horizontal and bool(party.frame.width)
            party.boundary.require([Kind.CONTROL, *([Kind.BLINDED_IDS] if matched else [])])
        return parties, federation

    def _met(self) -> tuple[list[Party], Federation]:
        """The same, whatever their policies say."""
        if self.federation is not None:
            return [self.federation.active], self.federation
        self.progress("reading the parties' tables", 0.0)
        parties = [make_party(name, file) for name, file in self.job.parties.items()]
        if self.job.method.name == AUTO:
            self._by_columns(parties)
        federation = Federation.simulate(
            parties,
            active=self._active(),
            wire=self.job.wire,
            seed=self.job.seeds[0],
            folder=self.folder,
            protocol=self.job.align.protocol,
            reveal=self.job.align.reveal,
        )
        return parties, federation

    def _results(self, begun: Begun, federation: Federation, views: Views) -> Results:
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
            **(
                self._horizontal(begun, federation)
                if self.horizontal
                else self._vertical(begun, federation, views)
            ),
            models=models,
            simulation=self.federation is None,
            seeds=self.job.seeds,
            chosen=self.chosen,
            job=shown(self.asked),
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

    def _vertical(self, begun: Begun, federation: Federation, views: Views) -> dict[str, Any]:
        """What is to be learnt, and from whom."""
        method = entry(self.job.method.name).make
        train, test = views[self.job.seeds[0]]
        learnt_from = train.shared(partial=method.partial)
        about: dict[str, Any] = {"task": "clustering", "label": ""}
        if method.supervised:
            plan, learnt_from = federation.label_plan, learnt_from.labelled()
            about = {
                "task": plan.task,
                "label": ", ".join(federation.active.labels_columns),
                "classes": len(plan.classes),
            }
            if plan.task == "binary":
                about["outcomes"] = {seed: int(held.y.sum()) for seed, (_, held) in views.items()}
        return about | {
            "parties": [_party_result(n, sizes, federation) for n, sizes in begun.items()],
            "shared_by_all": len(federation.alignment.common),
            "trained_on": len(learnt_from.rows),
            "tested_on": len(test.rows),
            "flows": _flows(federation, SESSION),  # the ledger may hold a fit that was stopped too
        }

    def _horizontal(self, begun: Begun, federation: Federation) -> dict[str, Any]:
        """The same after the parties have compared their columns and labels."""
        self.progress("comparing the parties' columns", 0.0)
        method = self._build(self.job.method)
        assert isinstance(method, HorizontalMethod)
        fed = federation.fresh(self.job.seeds[0], AGREEMENT)
        clients = clients_of(fed, HorizontalSide, fed.open(AGREEMENT, HorizontalSide))
        met = meet(fed, clients, method.agreement, supervised=method.supervised)
        plan = met.label_plan
        here = _here(fed)
        notes = {fed.active.name: met.notes}
        for party in here:
            lost = [c for c in read_alone(party, np.arange(len(party))) if c.unread]
            notes[party.name] = [*notes.get(party.name, []), *column_notes(lost, party.categories)]
        results = [
            PartyResult(
                name=name,
                active=name == fed.active.name,
                people=sizes["people"],
                columns=sizes["columns"],
                shared=0,
                alone=sizes["people"],
                learnt=[],
                id_notes=next((p.keys.report.done for p in here if p.name == name), []),
                column_notes=notes.get(name, []),
            )
            for name, sizes in begun.items()
        ]
        return {
            "geometry": "horizontal",
            "task": plan.task if plan else "clustering",
            "label": next((", ".join(p.labels_columns) for p in here if p.has_label), ""),
            "classes": len(plan.classes) if plan else 0,
            "parties": results,
            "shared_by_all": 0,
            "trained_on": sum(n["train"] + n["validation"] for n in met.rows.values()),
            "tested_on": sum(n["test"] for n in met.rows.values() if n["test"] >= FEWEST),
            "apart": (
                _apart([_side(fed, c) for c in clients.values()], fed.seed)
                if isinstance(fed.engine, InProcess)
                else None  # to tell would take all clients' rows
            ),
            "flows": _flows(fed, AGREEMENT),
        }

    def _active(self) -> str | None:
        """Who drives: in a horizontal federation everybody may have the label."""
        if self.job.active is not None or not self.horizontal:
            return self.job.active
        without = [name for name, file in self.job.parties.items() if file.table is None]
        return [*without, *self.job.parties][0]

    def _measure(
        self,
        method: Method,
        federation: Federation,
        test: Federation,
        seed: int,
        tag: str,
        seconds: float,
    ) -> FitResult:
        passed = federation.active.boundary.ledger.totals(tag)
        return FitResult(
            seed=seed,
            **_utility(method, federation, test, self._build(self.job.method).variance_power),
            history=[EpochResult(**vars(e)) for e in method.history_],
            seconds=seconds,
            rounds=len(method.history_) if isinstance(method, HorizontalMethod) else passed.rounds,
            messages=passed.messages,
            bytes=passed.bytes,
            kept=_kept(method, federation, self.job),
        )

    def _write(self, results: Results, parties: list[Party]) -> None:
        results.seconds += time.perf_counter() - self.started
        self.started = time.perf_counter()
        # Asking writes what waits, at an arbiter too, of whom there are no results.
        heads = {p.name: p.boundary.ledger.head for p in parties}
        for party in results.parties:
            party.ledger_head = heads.get(party.name, party.ledger_head)
        try:
            results.write(self.folder / "results.json")
        except OSError as e:
            raise InterlaceError(
                f"{self.folder / 'results.json'} cannot be written: {e.strerror}; what was there "
                "is intact. Free some space, then resume"
            ) from e


def few_threads(parties: Iterable[Party]) -> None:
    """Have PyTorch compute on one thread where no party has images, unless ``OMP_NUM_THREADS``
    says how many. For networks as small as a table takes, threads wait for each other: on a busy
    machine most of the time."""
    images = any(is_image(kind) for party in parties for kind in party.frame.dtypes)
    if not images and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _learnt_something(folder: Path) -> bool:
    """Whether a run got so far that there is something to lose; until then it may begin anew."""
    here = (folder, *folder.glob("parties/*"))  # a site's folder is that of one party
    return (folder / "results.json").exists() or any(
        any(party.glob("checkpoints/*/*")) for party in here
    )


def in_one_place(name: str) -> bool:
    """Whether a baseline is fitted where all parties' tables are."""
    return entry(name).role == "in one place" or issubclass(entry(name).make, Pooled)


def compared(job: Job) -> list[MethodChoice]:
    """The baselines of a job, each with the method's own settings where it takes them."""
    if job.compare == "none":
        return []
    chosen = job.compare
    if chosen == "all":
        names = ["active_alone", "mean_imputation", "pooled"]
        if is_horizontal(job.method.name):
            names = ["clients_alone", "pooled_rows"]
        elif entry(job.method.name).make.alike:
            alone = ["own_columns"] if entry(job.method.name).make.supervised else []
            names = [*alone, "pooled_columns"]
        elif entry(job.method.name).make.partial:
            names = ["active_alone"]  # there may be nobody whom all parties hold
        elif job.method.name not in ("split", "agg"):
            names.insert(1, "shared_only")
        chosen = [MethodChoice(name=n) for n in names]
    chosen = [c for c in chosen if c.name != job.method.name]
    own = {**job.method.settings, "method": {"name": job.method.name, **job.method.settings}}
    return [MethodChoice(name=c.name, **{**accepted(c.name, own), **c.settings}) for c in chosen]


def _utility(
    method: Method, federation: Federation, test: Federation, power: float | None
) -> dict[str, Any]:
    """What a model is worth: in a vertical federation by its scores of the view ``test``, in a
    horizontal one by the sums that each client makes over its own held-out people. ``power``: whose
    deviance the job's method is of, for all that are compared with it."""
    if not isinstance(method, HorizontalMethod | InOnePlace):
        itself = method.method_ if isinstance(method, PooledColumns) else method
        if not itself.supervised:
            return {"metrics": method.figures(test) | _agreement(method, test)}
        plan = federation.label_plan
        of = evaluate(
            plan.task,
            test.y.numpy(),
            method.outputs(test),
            classes=len(plan.classes),
            power=power,
        )
        return {"metrics": of.metrics, "omitted": of.omitted, "curves": of.curves}
    if isinstance(method, InOnePlace):
        figures, learnt = method.evaluate(federation), method.method
    else:
        figures, learnt = method.evaluate(federation, "test"), method
    if not all(math.isfinite(found["loss"]) for found in figures.values()):
        raise InterlaceError("the loss is not finite: training diverged; lower the learning rate")
    metrics = {}
    for name, found in figures.items():
        metrics[name] = {m: v for m, v in found.items() if m in MEASURES and math.isfinite(v)}
        if "accuracy" in found:
            metrics[name]["log_loss"] = found["loss"]
        elif not learnt.supervised:
            metrics[name]["distance"] = found["loss"]
    return {"metrics": metrics.pop("pooled"), "by_party": metrics}


def _agreement(method: Method, test: Federation) -> dict[str, float]:
    """How well clusters agree with classes, where the active party happens to have some."""
    if not test.active.has_label or test.label_plan.task not in ("binary", "multiclass"):
        return {}
    known = test.labelled()
    return {"adjusted_rand": float(adjusted_rand_score(known.y, method.predict(known)))}


def _side(federation: Federation, client: Peer | Own) -> HorizontalSide:
    """A client's side of the agreement, in a simulation."""
    if isinstance(client, Own):
        side = client.side
    else:
        assert isinstance(federation.engine, InProcess)
        side = federation.engine.parties[client.name].sides[AGREEMENT]
    assert isinstance(side, HorizontalSide)
    return side


def _apart(sides: Sequence[HorizontalSide], seed: int) -> Apart:
    """How non-IID the clients of a simulation are."""
    tables, labels = [], []
    for side in sides:
        rows, spec = side.parts["all"], side.plan.spec
        if side.label_plan is not None:
            labels.append(side.label_plan.encode(side.party.label_series)[rows].numpy())
        if not spec.image:
            tables.append(side.plan.transform(side.party.frame)[rows, : spec.numeric].numpy())
    sizes = [len(side.parts["all"]) for side in sides]
    y = np.concatenate(labels) if labels else np.zeros(sum(sizes))
    if labels and sides[0].objective.task == "regression":
        y = np.digitize(y, np.quantile(y, np.arange(1, 10) / 10))
    x = np.concatenate(tables) if tables and tables[0].shape[1] else None
    ends = np.cumsum(sizes)[:-1]
    found, chance = (
        heterogeneity({str(i): piece for i, piece in enumerate(np.split(order, ends))}, y, x)
        for order in (np.arange(len(y)), np.random.default_rng(seed).permutation(len(y)))
    )
    return Apart(
        sizes=found.sizes,
        labels=found.labels if labels else None,
        features=found.features,
        labels_by_chance=chance.labels if labels else None,
        features_by_chance=chance.features,
    )


def _why_not(name: str, federation: Federation) -> str | None:
    """Why a baseline cannot be fitted in this federation, or ``None``."""
    if in_one_place(name) and not isinstance(federation.engine, InProcess):
        return "tables can be pooled only where one person holds them all"
    if name in ("active_alone", "own_columns") and not federation.active.columns:
        return "the active party has no columns of its own"
    if name == "mean_imputation":
        labelled = federation.labelled()
        if len(labelled.shared().rows) == len(labelled.rows):
            return "every labelled person is shared, so no view is missing"
    return None


def _here(federation: Federation) -> list[Party]:
    """The parties of which this process has more than the name."""
    engine = federation.engine
    return list(engine.parties.values()) if isinstance(engine, InProcess) else [federation.active]


def _id_notes(name: str, federation: Federation) -> list[str]:
    """What making keys of a party's ids found worth saying, now that they have been matched; real
    partners keep it to themselves."""
    for party in (p for p in _here(federation) if p.name == name):
        if party is federation.active:
            rows = np.flatnonzero(federation.alignment.holders.any(1))
        else:
            rows = party.shared_with(federation.active.name)
        return notes_once_matched(party.keys.report, party.id_rule, party.frame[rows])
    return []


def _party_result(name: str, sizes: dict[str, int], federation: Federation) -> PartyResult:
    alignment = federation.alignment
    active = name == federation.active.name
    shared = len(alignment.common) if active else len(alignment.pairs[name])
    held_by_a_partner = int(alignment.holders.any(1).sum()) if active else shared
    return PartyResult(
        name=name,
        active=active,
        people=sizes["people"],
        columns=sizes["columns"],
        shared=shared,
        alone=sizes["people"] - held_by_a_partner,
        learnt=alignment.report.learnt[name],
        id_notes=_id_notes(name, federation),
    )


def _columns_read(
    party: Party, method: Method, tag: str, train: Federation
) -> Sequence[ColumnReport]:
    """How a method read each of a party's columns; nothing of a horizontal federation's, which are
    what all agreed on."""
    side = party.sides.get(tag)
    if side is None:
        read = getattr(method, "own_", None)
    else:
        read = getattr(side, "bottom", getattr(side, "columns", None))
    plan = getattr(read, "plan", None)
    if isinstance(plan, FeaturePlan):
        return plan.report
    if isinstance(method, HorizontalMethod):
        return []
    # Trees and scorecards keep bins alone, of columns that were read from the same people.
    people = train.shared(partial=method.partial)
    rows = people.labelled().rows if method.supervised else people.rows
    if party is not train.active:
        at = train.alignment.position(party.name)[rows]
        rows = party.shared_with(train.active.name)[at[at >= 0]]
    return read_alone(party, rows)


def read_alone(party: Party, rows: Rows) -> list[ColumnReport]:
    """How a party's columns read by themselves, over some of its rows; not its images."""
    return [
        fit_column(
            party.frame[name].gather(rows),
            party.readings[name],
            party=party.name,
            file=party.file,
        )[1]
        for name in party.columns
        if not is_image(party.frame[name].dtype)
    ]


def _kept(method: Method, federation: Federation, job: Job) -> list[KeptResult]:
    """What a method made of people without a label, held against the truth that a simulation has.

    Raises:
        DataError: the job's table of true labels, an id or a label of it is not usable.
    """
    if not hasattr(method, "kept_"):
        return []
    truth = None
    if job.truth is not None and isinstance(federation.engine, InProcess):
        active = federation.active
        table = Party(
            "truth",
            job.truth,
            id=active.id_rule,
            label=active.labels_columns,
            columns=[],
            task=active.task,
        )
        truth = true_classes(table, list(federation.engine.parties.values()), method.label_plan_)
    found = rightness(method, federation, truth)
    return [KeptResult(party=name, **vars(one)) for name, one in found.items()]


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
