"""The boundary of a party: every value passes it on the way out and on the way in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from interlace.boundary.guards import GUARDS, Chain, Codec, Sending, build_guard
from interlace.boundary.kinds import ABOUT_EACH, FORMS, NEVER_LEAVES, Kind
from interlace.boundary.ledger import Ledger
from interlace.boundary.message import Message, Part, Value
from interlace.boundary.policy import Policy
from interlace.errors import PolicyError, Refused

_FAMILIES: dict[str, frozenset[torch.dtype]] = {
    "float": frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16}),
    "int": frozenset({torch.int64, torch.int32, torch.int16, torch.uint8}),
    "byte": frozenset({torch.uint8}),
}

_DONE = Part(Kind.CONTROL, {})  # how the ledger notes an answer that only says "done"

# What a JSON value can hold: enough for settings and figures, too little to carry a table. These
# bounds stop an accident; a method that means to smuggle could still do so bit by bit.
MAX_JSON_BYTES = 4096
MAX_JSON_ITEMS = 256


@dataclass(frozen=True, slots=True)
class Slot:
    """One value of an operation: what it is called there and what kind it is."""

    name: str
    kind: Kind


class Boundary:
    """What stands between a party and everybody else.

    Args:
        party: The party's name.
        policy: Its rules.
        ledger: Where it writes what passed.
        seed: Seeds the guards' noise. ``None`` takes it from the operating system, as a real
            deployment must: whoever knows the seed can take the noise off again. Then no noise
            comes twice, also after a checkpoint.
    """

    def __init__(self, party: str, policy: Policy, ledger: Ledger, seed: int | None = None) -> None:
        self.party, self.policy, self.ledger = party, policy, ledger
        self.generator = torch.Generator()
        self.repeatable = seed is not None
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self.round = 0
        self.sent_bytes = 0
        self.sent_of: dict[Kind, int] = {}
        self.requests = self.people = 0
        self.epsilon_before = 0.0  # of the run's earlier trainings
        self.expected: frozenset[Kind] = frozenset()
        self._chains: dict[tuple[Kind, str], Chain] = {}
        self._private: list[tuple[int, int, Callable[[], bool]]] = []
        self._about: Tensor | None = None

    def protect(self, *tensors: Tensor) -> None:
        """Mark tensors that hold records.

        Nothing that shares their memory can leave while they, or a view of them, live: no view, no
        array made of one, under no kind. A copy can: the boundary does not know what a method's
        numbers mean.
        """
        self._private = [entry for entry in self._private if not entry[2]()]
        for storage in (t.untyped_storage() for t in tensors if t.numel()):
            start = storage.data_ptr()
            freed = StorageWeakRef(storage).expired  # type: ignore[no-untyped-call]
            self._private.append((start, start + storage.nbytes(), freed))

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Hear which kinds may be due to leave, so that who lacks one is told of all at once."""
        self.expected |= frozenset(kinds)

    def require(self, kinds: Iterable[Kind]) -> None:
        """Make sure that the policy lets some kinds leave.

        Raises:
            PolicyError: it does not; the message names what else may be due and is not allowed.
        """
        allowed = self.policy.allowed
        lacking = sorted(map(str, set(kinds) - allowed))
        if not lacking:
            return
        due = sorted({*map(str, self.expected - allowed)} - {*lacking})
        more = f", nor {_listed(due)}, which may be due too" if due else ""
        # No method is without these.
        always = {Kind.CONTROL, Kind.BLINDED_IDS}.intersection(lacking)
        else_ = "" if always else f", or choose a method without {_listed(lacking)}"
        raise PolicyError(
            f"the policy of party '{self.party}' does not let {_listed(lacking)} leave{more}; add "
            f"`policy: {{allow_also: [{', '.join(lacking + due)}]}}` to its party file{else_}"
        )

    def about(self, rows: Tensor) -> None:
        """Say which people the next released value is about (for guards that keep account)."""
        self._about = rows

    def release(
        self,
        session: str,
        operation: str,
        receiver: str,
        slots: Sequence[Slot],
        values: Sequence[Value],
    ) -> Message:
        """Let values out as one message.

        Raises:
            PolicyError: the policy does not allow a kind, a value is a record or not of its
                kind's form, a guard's budget or what the run may send or tell of one person is
                used up, or the party has stopped everything. Nothing has left then.
        """
        if self.stopped:
            raise PolicyError(
                f"party '{self.party}' has stopped everything (its stop file is there)"
            )
        rows, self._about = self._about, None
        people = self.people
        if rows is not None and ABOUT_EACH.intersection(slot.kind for slot in slots):
            people += len(rows)
            self._check_people(operation, rows, people)
        parts, labels = [], []
        for slot, value in zip(slots, values, strict=True):
            part, label = self._guarded(slot, value, receiver, rows)
            parts.append(part)
            labels.append(label)
        if any(slot.kind in self.policy.guards for slot in slots):
            self._check_epsilon(operation)
        message = Message(session, operation, self.party, receiver, self.round, tuple(parts))
        size = message.encoded_size()
        if self.policy.max_bytes is not None and self.sent_bytes + size > self.policy.max_bytes:
            raise PolicyError(
                f"party '{self.party}' lets at most {self.policy.max_bytes:,} bytes leave in a "
                f"run, and '{operation}' would pass that; raise `max_bytes` in its policy to go on"
            )
        sent_of = self._counted(message)
        self.sent_bytes, self.sent_of, self.people = self.sent_bytes + size, sent_of, people
        for part, label in zip(parts or [_DONE], labels or [""], strict=True):
            self.ledger.record("sent", message, part, label)
        return message

    def admit(self, message: Message, slots: Sequence[Slot]) -> list[Value]:
        """Check a received message and return its values.

        Raises:
            Refused: the message is for somebody else, or not what ``slots`` promise: another
                number of values, another kind, number type or dimension, not finite, or a code
                that cannot be read; or the party has stopped everything. The ledger notes the
                refusal; nothing else has changed.
        """
        if self.stopped:
            raise self.refusal(message, "it has stopped everything")
        if message.receiver != self.party:
            raise self.refusal(message, f"it is for '{message.receiver}'")
        if len(message.parts) != len(slots):
            raise self.refusal(message, f"{len(message.parts)} values came, {len(slots)} were due")
        values: list[Value] = []
        for slot, part in zip(slots, message.parts, strict=True):
            if part.kind is not slot.kind:
                raise self.refusal(message, f"'{slot.name}' came as {part.kind}, not {slot.kind}")
            if part.codec and part.coded is not None and part.value_is_empty():
                part.value = self._decoded(message, part)
            problem = _problem(slot.kind, part.value)
            if problem:
                raise self.refusal(message, f"'{slot.name}' ({slot.kind}) {problem}")
            values.append(part.value)
        for part in message.parts or (_DONE,):
            self.ledger.record("received", message, part, part.codec)
        return values

    def go_on_from(self, before: Boundary) -> None:
        """Count on from an earlier training of the same run what is limited for the whole run."""
        self.sent_of, self.requests = dict(before.sent_of), before.requests
        self.sent_bytes, self.people = before.sent_bytes, before.people
        self.epsilon_before = before.epsilon

    def go_on_after(self, ledger: Ledger) -> None:
        """Count on what is limited for the whole run from what an earlier process noted."""
        self.sent_of = ledger.sent_by(self.party)
        self.sent_bytes = sum(self.sent_of.values())
        self.requests = sum(
            e.direction == "received" and e.receiver == self.party and not e.part
            for e in ledger.entries()
        )

    def _counted(self, message: Message) -> dict[Kind, int]:
        """Bytes by kind that have left once this message has, if some kinds are limited.

        Raises:
            PolicyError: that is more than the policy allows in a run.
        """
        if not self.policy.max_bytes_of:
            return self.sent_of
        counted = dict(self.sent_of)
        for part, share in zip(message.parts or (_DONE,), message.shares(), strict=True):
            counted[part.kind] = counted.get(part.kind, 0) + share
            most = self.policy.max_bytes_of.get(part.kind)
            if most is not None and counted[part.kind] > most:
                raise PolicyError(
                    f"party '{self.party}' lets at most {most:,} bytes of {part.kind} leave in a "
                    f"run, and '{message.operation}' would pass that (`max_bytes_of` in its "
                    "policy, or the disclosure plan that it approved)"
                )
        return counted

    def answering(self, message: Message) -> None:
        """Count a request before it is carried out.

        Raises:
            Refused: the policy's number of requests in a run is used up.
        """
        most = self.policy.max_requests
        if most is not None and self.requests >= most:
            raise self.refusal(
                message, f"it answers at most {most:,} requests in a run (`max_requests`)"
            )
        self.requests += 1

    def _check_people(self, operation: str, rows: Tensor, people: int) -> None:
        """Hold the people that leaving values are about, and all so far, against the policy."""
        fewest, most = self.policy.smallest_group, self.policy.max_rows
        in_all = self.policy.max_people
        if in_all is not None and people > in_all:
            raise PolicyError(
                f"party '{self.party}' answers for at most {in_all:,} people in a run, and "
                f"'{operation}' for {len(rows):,} more would pass that (`max_people` in its "
                "policy, or the disclosure plan that it approved)"
            )
        # Whom is asked about at once is the driver's choice.
        for bound, setting, beyond, way_out in (
            (most, "max_rows", most is not None and len(rows) > most, "a smaller one, or raise"),
            (
                fewest,
                "smallest_group",
                fewest is not None and len(rows) < fewest,
                "a larger one (the last batch of an epoch may be smaller still), or lower",
            ),
        ):
            if beyond:
                raise PolicyError(
                    f"party '{self.party}' does not answer '{operation}' for {len(rows):,} people "
                    f"at once: `{setting}` of its policy is {bound:,}; where the method takes a "
                    f"`batch_size`, set {way_out} `{setting}`"
                )

    @property
    def epsilon(self) -> float:
        """What the guards claim that the run has told of one person so far, all added up."""
        claims = (account.get("epsilon", 0.0) for account in self.accounts().values())
        return self.epsilon_before + sum(map(float, claims))

    def _check_epsilon(self, operation: str) -> None:
        """Hold what guarded values are about to tell, and all so far, against the policy."""
        most = self.policy.max_epsilon
        if most is not None and self.epsilon > most * (1 + 1e-9):  # sums round
            raise PolicyError(
                f"party '{self.party}' tells of one person at most epsilon {most:.4g} in a run, "
                f"and '{operation}' would pass that (`max_epsilon` in its policy, or the "
                "disclosure plan that it approved); train with fewer epochs or seeds, or with more "
                "noise under `guards` of its policy"
            )

    @property
    def stopped(self) -> bool:
        """Whether the party has stopped everything."""
        return self.policy.stop_file is not None and self.policy.stop_file.exists()

    def accounts(self) -> dict[str, dict[str, float | str]]:
        """What the guards can claim so far, by kind, receiver and guard."""
        return {
            f"{kind} to {receiver}, {guard.label}": account
            for (kind, receiver), chain in self._chains.items()
            for guard in chain.guards
            if (account := guard.account())
        }

    def state(self) -> dict[str, Tensor]:
        """Guards' state, the noise generator and the bytes sent, for a resumed run.

        It stays with the party: whoever has the generator can take the noise off.
        """
        out = {
            "generator": self.generator.get_state(),
            "sent_bytes": torch.tensor(self.sent_bytes),
            "sent_of": torch.tensor([self.sent_of.get(kind, 0) for kind in Kind]),
            "requests": torch.tensor(self.requests),
            "people": torch.tensor(self.people),
            "epsilon": torch.tensor(self.epsilon_before, dtype=torch.float64),
            "guards": self._fingerprint(),
        }
        for (kind, receiver), chain in self._chains.items():
            for i, guard in enumerate(chain.guards):
                for name, tensor in guard.state().items():
                    out[f"{kind.value}/{receiver}/{i}/{name}"] = tensor
        return out

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` gave.

        Raises:
            PolicyError: it was made under other guards, whose accounts these cannot go on with.
        """
        if not torch.equal(state["guards"], self._fingerprint()):
            raise PolicyError(
                f"the guards of party '{self.party}' are not those that the checkpoint was made "
                "under; take them back, or train anew"
            )
        if self.repeatable:
            # Else two releases under the same noise would give the difference of what is under it.
            self.generator.set_state(state["generator"])
        # More may have left since the state was kept.
        self.sent_bytes = max(self.sent_bytes, int(state["sent_bytes"]))
        self.epsilon_before = max(self.epsilon_before, float(state["epsilon"]))
        then = dict(zip(Kind, state["sent_of"].tolist(), strict=True))
        self.sent_of = {kind: max(size, self.sent_of.get(kind, 0)) for kind, size in then.items()}
        self.requests = max(self.requests, int(state["requests"]))
        self.people = max(self.people, int(state["people"]))
        groups: dict[tuple[Kind, str, int], dict[str, Tensor]] = {}
        for key, tensor in state.items():
            if "/" in key:
                kind, receiver, i, name = key.split("/")
                groups.setdefault((Kind(kind), receiver, int(i)), {})[name] = tensor
        for (kept, receiver, place), tensors in groups.items():
            self._chain(kept, receiver).guards[place].load_state(tensors)

    def _guarded(
        self, slot: Slot, value: Value, receiver: str, rows: Tensor | None
    ) -> tuple[Part, str]:
        kind = slot.kind
        if kind in NEVER_LEAVES:
            raise PolicyError(f"{kind} never leave a party; no policy can allow it")
        self.require([kind])
        problem = _form_problem(kind, value)
        if problem:
            raise PolicyError(
                f"'{slot.name}' of party '{self.party}' cannot leave as {kind}: it {problem}"
            )
        if not isinstance(value, Tensor):
            return Part(kind, json.loads(json.dumps(value))), ""  # as any receiver will read it
        value = value.detach()
        if self._private and self._is_private(value):
            raise PolicyError(
                f"'{slot.name}' of party '{self.party}' is part of its records, not {kind}"
            )
        if kind not in self.policy.guards:
            return Part(kind, value), ""
        guards = self._chain(kind, receiver)
        sending = Sending(kind, self.party, receiver, rows, self.generator)
        for guard in guards.defences:
            value = guard(value, sending)
        if guards.codec is None:
            return Part(kind, value), guards.label
        coded = guards.codec.encode(value, sending)
        return Part(kind, coded.value, guards.codec.name, coded.tensors), guards.label

    def _is_private(self, value: Tensor) -> bool:
        storage = value.untyped_storage()
        start = storage.data_ptr()
        end = start + storage.nbytes()
        return any(
            start < its_end and its_start < end and not freed()
            for its_start, its_end, freed in self._private
        )

    def _fingerprint(self) -> Tensor:
        """Which guards stand where, as 16 bytes."""
        guards = self.policy.model_dump(mode="json", include={"guards"})
        digest = blake2b(json.dumps(guards, sort_keys=True).encode(), digest_size=16)
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    def _chain(self, kind: Kind, receiver: str) -> Chain:
        """The guards of a kind, one set for each receiver since some keep account of it."""
        key = (kind, receiver)
        if key not in self._chains:
            self._chains[key] = Chain([build_guard(g) for g in self.policy.guards.get(kind, [])])
        return self._chains[key]

    def _decoded(self, message: Message, part: Part) -> Tensor:
        codec = GUARDS.get(part.codec)
        if codec is None or not issubclass(codec, Codec) or part.coded is None:
            raise self.refusal(message, f"it is packed in an unknown way ('{part.codec[:40]}')")
        try:
            return codec.decode(part.coded)
        except (KeyError, ValueError, RuntimeError, IndexError, TypeError):
            raise self.refusal(
                message, f"its packed form ('{part.codec}') cannot be read"
            ) from None

    def refusal(self, message: Message, why: str) -> Refused:
        """The error that refuses a message, once the ledger has noted it."""
        for part in message.parts or (_DONE,):
            self.ledger.record("refused", message, part, part.codec)
        return Refused(
            f"party '{self.party}' refused a message from '{message.sender}' "
            f"('{message.operation}', round {message.round}): {why}"
        )


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))


def _problem(kind: Kind, value: Value) -> str | None:
    """What is wrong with a received value, or ``None``."""
    problem = _form_problem(kind, value)
    if problem or not isinstance(value, Tensor):
        return problem
    # The sum of finite numbers can overflow, so only a sum that is not finite needs the full look.
    if (
        FORMS[kind].numbers == "float"
        and not math.isfinite(value.sum().item())
        and not bool(torch.isfinite(value).all())
    ):
        return "holds NaN or infinity"
    return None


def _form_problem(kind: Kind, value: Value) -> str | None:
    """What is wrong with a value's form, whichever way it goes, or ``None``."""
    form = FORMS[kind]
    if form.numbers == "json":
        return _json_problem(value)
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return "is not a plain tensor"
    if value.dtype not in _FAMILIES[form.numbers]:
        return f"has number type {str(value.dtype)[6:]}"
    if value.dim() not in form.dims:
        return f"has {value.dim()} dimensions"
    return None


def _json_problem(value: Value) -> str | None:
    if not isinstance(value, dict):
        return "is not a JSON object"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return "holds more than text, numbers, lists and objects; tensors need a kind of their own"
    if len(text) > MAX_JSON_BYTES or text.count(",") >= MAX_JSON_ITEMS:
        return (
            f"is larger than {MAX_JSON_BYTES:,} bytes or {MAX_JSON_ITEMS} items; data travels as "
            "tensors, of a kind of their own"
        )
    return None
