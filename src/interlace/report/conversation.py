"""From the flows of a run to a sequence diagram: who asked whom for what, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from interlace.boundary import Kind
from interlace.job.results import Flow

EXPLAINED: dict[str, str] = {
    Kind.BLINDED_IDS: "ids under a key that their owner keeps; without it they read as noise",
    Kind.ROW_SELECTION: "which shared people are meant, as positions in an order both sides agreed "
    "on",
    Kind.EMBEDDING: "what a party's own model says about people: vectors, not columns",
    Kind.GRADIENT: "slopes: how the loss would change with embeddings, scores or weights",
    Kind.CLASS_COUNT: "how many classes there are",
    Kind.KEEP_PROBABILITY: "how likely each row without a label is to be learnt from: 0 if "
    "its class is in doubt",
    Kind.CIPHERTEXT: "encrypted numbers that only the key's owner can read",
    Kind.HISTOGRAM: "sums over groups of people: of gradients, or of outcomes",
    Kind.SPLIT_CHOICE: "columns, bins and cuts of a party, by number",
    Kind.PARTIAL_SCORE: "a party's own share of a score",
    Kind.PROTOTYPE: "a mean embedding of many people",
    Kind.CLASS_PRIOR: "shares of the classes",
    Kind.MODEL_WEIGHTS: "the weights of a model",
    Kind.METRIC: "a measure of quality or cost",
    Kind.CONTROL: "settings, sizes, and the word that something is done",
}


@dataclass(frozen=True)
class Lane:
    """A participant of the diagram; ``x`` in per cent of its width."""

    name: str
    active: bool
    x: float


@dataclass(frozen=True)
class Step:
    """One arrow: a kind of message between the active party and all partners that it goes to."""

    operation: str
    kind: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    shapes: tuple[str, ...]
    times: int  # messages of one sender to one receiver
    messages: int
    bytes_before: int
    bytes_after: int
    guards: tuple[str, ...]
    tails: tuple[float, ...]
    heads: tuple[tuple[float, bool], ...]  # where an arrow ends, and whether it points right

    @property
    def left(self) -> float:
        """Where the arrow's line starts, in per cent."""
        return min(*self.tails, *(x for x, _ in self.heads))

    @property
    def right(self) -> float:
        """Where it ends."""
        return max(*self.tails, *(x for x, _ in self.heads))


@dataclass(frozen=True)
class Block:
    """Steps that follow each other and happen equally often; a loop when more than once."""

    times: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Phase:
    """One session: the matching, or a method's."""

    session: str  # as the ledgers name it
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Conversation:
    """The whole diagram."""

    lanes: tuple[Lane, ...]
    phases: tuple[Phase, ...]


def conversation(parties: Sequence[tuple[str, bool]], flows: Sequence[Flow]) -> Conversation:
    """Lay the diagram out.

    Args:
        parties: Names, and whether each is the active one.
        flows: What passed, in the order in which it first did.
    """
    known = [name for name, _ in parties]
    helpers = _once(f.receiver for f in flows if f.receiver not in known)  # they have no table
    order = [*sorted(parties, key=lambda p: not p[1]), *((name, False) for name in helpers)]
    lanes = tuple(
        Lane(name, active, round(100 * (i + 0.5) / len(order), 2))
        for i, (name, active) in enumerate(order)
    )
    x = {lane.name: lane.x for lane in lanes}
    active = lanes[0].name
    phases = []
    for session in dict.fromkeys(f.session for f in flows):
        steps = _steps([f for f in flows if f.session == session], active, x)
        phases.append(Phase(session, _title(steps), _blocks(steps)))
    return Conversation(lanes, tuple(phases))


def _steps(flows: Sequence[Flow], active: str, x: dict[str, float]) -> list[Step]:
    together: dict[tuple[str, str, str], list[Flow]] = {}
    for flow in flows:
        if flow.sender == active:
            direction = "out"
        elif flow.receiver == active:
            direction = "in"
        else:  # between two passive parties: an arrow of its own
            direction = f"{flow.sender}\0{flow.receiver}"
        together.setdefault((flow.operation, flow.kind, direction), []).append(flow)
    return [_step(group, x) for group in together.values()]


def _step(flows: list[Flow], x: dict[str, float]) -> Step:
    senders = _once(f.sender for f in flows)
    receivers = _once(f.receiver for f in flows)
    return Step(
        operation=flows[0].operation,
        kind=flows[0].kind,
        senders=senders,
        receivers=receivers,
        shapes=_once(f"{f.shape} {f.dtype}" for f in flows if f.shape),
        times=max(f.messages for f in flows),
        messages=sum(f.messages for f in flows),
        bytes_before=sum(f.bytes_before for f in flows),
        bytes_after=sum(f.bytes_after for f in flows),
        guards=_once(f.guard for f in flows if f.guard),
        tails=tuple(x[s] for s in senders),
        heads=tuple((x[r], x[r] > x[senders[0]]) for r in receivers),
    )


def _blocks(steps: list[Step]) -> tuple[Block, ...]:
    return tuple(Block(times, tuple(g)) for times, g in groupby(steps, key=lambda s: s.times))


def _title(steps: list[Step]) -> str:
    if any(s.kind == Kind.BLINDED_IDS for s in steps):
        return "Finding the shared people"
    learning = any(s.kind not in (Kind.CONTROL, Kind.HISTOGRAM) for s in steps)
    return "Learning together" if learning else "Comparing columns"


def _once(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
