"""Where a party's policy would stop a run that it is to approve, by its disclosure plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from interlace.boundary import Policy
from interlace.report.words import size
from interlace.sites.contract import Contract
from interlace.sites.plan import Plan

# What the driver could ask for where a bound on single answers stops a rehearsal.
WAYS_OUT = {
    "max_rows": "set a smaller `batch_size`, if the method has one",
    "smallest_group": "set a larger `batch_size`, if the method has one",
    "min_bin_rows": "set a smaller `max_bin`",
    "encryption": "set an `encryption` of the method that all allow",
}
SHORTER = "ask for fewer epochs, rounds or trees, fewer `seeds`, or `compare: none`"


class Stop(NamedTuple):
    """A line of the policy that would stop a run.

    Args:
        setting: Its name.
        why: What of the run is beyond it. It tells of the party's table, so it is for nobody else.
        way_out: What the driver could ask for instead.
        surely: Whether the run cannot but go beyond it, however many people turn out to be shared
            and however soon a training stops. Only that refuses a run; whether it does tells the
            driver nothing of the table.
    """

    setting: str
    why: str
    way_out: str
    surely: bool = False


def stops(policy: Policy, plan: Plan, contract: Contract) -> list[Stop]:
    """All that of a party's policy would stop a run.

    What has no plan, since the policy does not let a kind leave, is refused before; so is what the
    privacy budget over all runs does not allow.
    """
    return [*_by_amount(policy, plan, contract), *_by_answer(policy, plan, contract)]


def _by_amount(policy: Policy, plan: Plan, contract: Contract) -> Iterator[Stop]:
    if policy.max_bytes is not None and not plan.within(policy.max_bytes):
        yield _bytes("max_bytes", policy.max_bytes, plan.bytes, plan, "")
    for kind, most in sorted(policy.max_bytes_of.items()):
        if kind in plan.leaves and not (plan.capped and plan.leaves[kind].bytes <= most):
            yield _bytes("max_bytes_of", most, plan.leaves[kind].bytes, plan, f" of {kind}")
    messages = sum(leaving.messages for leaving in plan.leaves.values())
    answers, asks = policy.max_requests, plan.party != contract.active
    if answers is not None and asks and messages > answers:  # each request has an answer
        why = f"up to {messages:,} requests may come, and it allows {answers:,}"
        yield Stop("max_requests", why, f"{SHORTER}, or take a larger `batch_size`")
    if policy.max_epsilon is not None and (plan.epsilon or 0.0) > policy.max_epsilon * (1 + 1e-9):
        why = f"up to epsilon {plan.epsilon:.3g} may be told of one person, and it allows "
        yield Stop("max_epsilon", f"{why}{policy.max_epsilon:.3g}", SHORTER)
    if policy.max_people is not None and (plan.people or 0) > policy.max_people:
        why = f"answers may be about {plan.people:,} people, and it allows {policy.max_people:,}"
        yield Stop("max_people", why, "score fewer people")
    for why in plan.short:
        yield Stop("guards", why, SHORTER)


def _bytes(setting: str, most: int, planned: int, plan: Plan, of: str) -> Stop:
    found = f"how much{of} leaves cannot be told without a table"
    if plan.capped:
        found = f"up to {size(planned)}{of} may leave"
    return Stop(setting, f"{found}, and it allows {size(most)}", SHORTER)


def _by_answer(policy: Policy, plan: Plan, contract: Contract) -> Iterator[Stop]:
    if plan.stopped:
        setting = next((n for n in WAYS_OUT if f"`{n}`" in plan.stopped), next(iter(WAYS_OUT)))
        why = f"it stopped a rehearsal: {plan.stopped}"
        yield Stop(setting, why, WAYS_OUT[setting], setting == "encryption")
    scores = contract.scores
    if scores is None or plan.party == contract.active:
        return
    once = min(scores.batch or 1, scores.people)
    if policy.max_rows is not None and once > policy.max_rows:
        why = f"{once:,} people are asked about at once, and it is {policy.max_rows:,}"
        yield Stop("max_rows", why, "ask about fewer at once")
    if policy.smallest_group is not None and once < policy.smallest_group:
        # A service may happen to be asked about several at once.
        why = f"{once:,} may be asked about at once, and it is {policy.smallest_group:,}"
        yield Stop("smallest_group", why, "ask about more at once", scores.batch is not None)
