"""What the protocols find, whom they tell, and what passes between the parties."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.align import Alignment, align, cache_tokens, dh, kkrt, oprf
from interlace.boundary import Kind
from interlace.boundary.message import decode
from interlace.engines import InProcess
from interlace.errors import AlignmentError, JobError, NobodyShared
from interlace.party import Party

Make = Callable[..., list[Party]]
ID = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=12)
FEW = settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(parties: list[Party], *, wire: bool = False, **how: object) -> Alignment:
    names = [p.name for p in parties[1:]]
    return align(parties[0], InProcess(parties, wire=wire), names, **how)  # type: ignore[arg-type]


def people(party: Party, rows: np.ndarray) -> list[bytes]:
    return [party.keys.values[r] for r in rows]


def check(parties: list[Party], alignment: Alignment) -> None:
    """Everything that an alignment promises."""
    active, *passive = parties
    sets = {p.name: set(p.keys.values) for p in parties}
    everyone = set.intersection(*sets.values())
    only_common = alignment.report.reveal == "common"
    assert people(active, alignment.common) == [i for i in active.keys.values if i in everyone]
    for column, party in enumerate(passive):
        rows, theirs = alignment.pairs[party.name], party.aligned["active"]
        assert people(active, rows) == people(party, theirs)
        assert len(set(rows)) == len(rows)
        due = everyone if only_common else sets["active"] & sets[party.name]
        assert set(people(active, rows)) == due
        where = alignment.position(party.name)
        assert (rows[where[where >= 0]] == np.flatnonzero(where >= 0)).all()
        assert (alignment.holders[:, column] == (where >= 0)).all()
    assert alignment.report.people == {p.name: len(p) for p in parties}
    assert alignment.report.common == len(everyone)


@st.composite
def overlapping(draw: st.DrawFn, count: int) -> list[list[str]]:
    """Lists of ids, at least two of them everywhere, of very different lengths."""
    common = draw(st.sets(ID, min_size=2, max_size=20))
    lists = []
    for _ in range(count):
        own = draw(st.sets(ID, max_size=draw(st.sampled_from([0, 3, 60]))))
        lists.append(draw(st.permutations(sorted(common | own))))
    return lists


@pytest.mark.parametrize("protocol", ["dh", "kkrt"])
@FEW
@given(data=st.data())
def test_two_parties(parties: Make, protocol: str, data: st.DataObject) -> None:
    both = parties(*data.draw(overlapping(2)))
    check(both, run(both, protocol=protocol, wire=data.draw(st.booleans())))


@pytest.mark.parametrize("reveal", ["pairs", "common"])
@pytest.mark.parametrize("count", [3, 4])
@settings(FEW, max_examples=3)
@given(data=st.data())
def test_more_parties(parties: Make, count: int, reveal: str, data: st.DataObject) -> None:
    all_ = parties(*data.draw(overlapping(count)))
    protocol = "auto" if reveal == "common" else data.draw(st.sampled_from(["dh", "kkrt"]))
    wire = data.draw(st.booleans())
    alignment = run(all_, protocol=protocol, reveal=reveal, wire=wire)
    assert alignment.report.reveal == reveal
    check(all_, alignment)


@pytest.mark.parametrize("protocol", ["dh", "kkrt"])
def test_sets_of_several_messages(
    parties: Make, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dh, "CHUNK", 16)
    monkeypatch.setattr(oprf, "BLOCK_BINS", 64)
    monkeypatch.setattr(kkrt, "MESSAGE_BYTES", 100)
    for mine, theirs in ((70, 33), (2, 90), (90, 2), (64, 64)):
        both = parties([str(i) for i in range(mine)], [str(i) for i in reversed(range(theirs))])
        check(both, run(both, protocol=protocol))


def test_size_chooses_the_protocol(parties: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = [str(i) for i in range(10)], [str(i) for i in range(40)]
    monkeypatch.setattr("interlace.align.alignment.DH_MOST", 20)
    three = parties(small, large, small)
    alignment = run(three)
    assert alignment.report.protocols == {"p1": "kkrt", "p2": "dh"}
    check(three, alignment)


def test_people_shared_with_some_only_stay_hidden_in_common(parties: Make) -> None:
    three = parties(["a", "b", "x", "y"], ["a", "b", "x", "z"], ["a", "b", "y", "z"])
    alignment = run(three, reveal="common")
    check(three, alignment)
    assert alignment.holders.sum(1).tolist() == [2, 2, 0, 0]
    assert people(three[1], three[1].aligned["active"]) != ["x"]
    by_pairs = run(three, reveal="pairs")
    assert by_pairs.holders.tolist() == [[True, True], [True, True], [True, False], [False, True]]


def test_the_common_order_is_random_and_the_same_for_all_pairs(parties: Make) -> None:
    ids = [str(i) for i in range(200)]
    three = parties(ids, ids[:150], ids[50:])
    first, second = run(three), run(three)
    assert first.pairs["p1"].tolist() != second.pairs["p1"].tolist()
    assert first.pairs["p1"].tolist() != sorted(first.pairs["p1"])
    common = set(first.common.tolist())
    orders = [[r for r in first.pairs[n].tolist() if r in common] for n in ("p1", "p2")]
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("how", "sets"),
    [
        ({"protocol": "dh"}, 2),
        ({"protocol": "kkrt"}, 2),
        ({"reveal": "common"}, 3),
    ],
)
def test_one_shared_person_or_none(parties: Make, how: dict[str, str], sets: int) -> None:
    strangers = parties(*([f"{i}-{j}" for j in range(5)] for i in range(sets)))
    with pytest.raises(NobodyShared, match=r"no person .*p1.*interlace inspect"):
        run(strangers, **how)
    assert all(not p.aligned for p in strangers)
    some = parties(*(["c", *(f"{i}-{j}" for j in range(5))] for i in range(sets)))
    assert len(run(some, **how).common) == 1


def test_diffie_hellman_cannot_hide_pairs(parties: Make) -> None:
    with pytest.raises(JobError, match="kkrt"):
        run(parties(["a", "b"], ["a", "b"], ["a", "b"]), protocol="dh", reveal="common")


def test_nobody_to_align_with(parties: Make) -> None:
    with pytest.raises(JobError, match="no partner"):
        run(parties(["a", "b"]))


@pytest.mark.parametrize(
    ("how", "sets"),
    [({"protocol": "dh"}, 2), ({"protocol": "kkrt"}, 2), ({"reveal": "common"}, 3)],
)
def test_no_id_and_no_hash_of_an_id_passes(
    parties: Make, watching: type, how: dict[str, str], sets: int
) -> None:
    ids = [f"person-{i:08d}-of-somewhere" for i in range(40)]
    some = parties(ids[:30], *([ids[10:]] * (sets - 1)))
    engine = watching(some)
    align(some[0], engine, [p.name for p in some[1:]], **how)  # type: ignore[arg-type]
    everything = b"".join(engine.seen)
    assert len(engine.seen) > 6
    for text in ids:
        raw = text.encode()
        assert raw not in everything
        for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s", "sha3_256"):
            digest = hashlib.new(name, raw).digest()
            assert digest[:12] not in everything
            assert digest.hex()[:24].encode() not in everything


@pytest.mark.parametrize("protocol", ["dh", "kkrt"])
def test_no_two_alignments_show_the_same_values(
    parties: Make, watching: type, protocol: str
) -> None:
    both = parties([str(i) for i in range(30)], [str(i) for i in range(10, 40)])
    seen: list[set[bytes]] = []
    for _ in range(2):
        engine = watching(both)
        align(both[0], engine, ["p1"], protocol=protocol)  # type: ignore[arg-type]
        parts = [part for blob in engine.seen for part in decode(blob).parts]
        blinded = [p.value.numpy() for p in parts if p.kind is Kind.BLINDED_IDS]
        seen.append({row.tobytes() for value in blinded for row in np.atleast_2d(value)})
        assert len(seen[-1]) >= 90
    assert not seen[0] & seen[1]


def test_progress_goes_from_little_to_all(parties: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dh, "CHUNK", 8)
    both = parties([str(i) for i in range(30)], [str(i) for i in range(40)])
    for protocol in ("dh", "kkrt"):
        steps: list[tuple[str, float]] = []
        run(both, protocol=protocol, progress=lambda *step, to=steps: to.append(step))
        for what in {w for w, _ in steps}:
            shares = [share for w, share in steps if w == what]
            assert "p1" in what
            assert shares == sorted(shares)
            assert 0 < shares[0] <= shares[-1] == 1


def test_the_report_says_what_each_learnt(parties: Make) -> None:
    three = parties(["a", "b", "c"], ["a", "b"], ["b", "c", "a"])
    pairs, common = run(three).report, run(three, reveal="common").report
    assert pairs.shared == {"p1": 2, "p2": 3}
    assert common.shared == {"p1": 2, "p2": 2}
    assert any("'p2' holds too" in s for s in pairs.learnt["active"])
    assert not any("holds too" in s for s in common.learnt["active"])
    assert all("'active' has" in r.learnt["p1"][0] for r in (pairs, common))
    assert pairs.model_validate_json(pairs.model_dump_json()) == pairs


def test_kept_tokens_give_the_same_alignment(
    parties: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = parties([str(i) for i in range(30)], [str(i) for i in range(10, 60)])
    with pytest.raises(AlignmentError, match="no folder"):
        cache_tokens(both[1])
    both[1].folder = tmp_path / "p1"
    cache_tokens(both[1])
    stored = tmp_path / "p1" / "dh-tokens"
    assert stored.stat().st_mode & 0o077 == 0
    blinded: list[int] = []
    blind = dh._blind
    monkeypatch.setattr(dh, "_blind", lambda key, ids: blinded.append(len(ids)) or blind(key, ids))
    check(both, run(both, protocol="dh"))
    assert sum(blinded) == 30  # the active party's only
    # a new person at the passive party is blinded under the same key; the rest is still known
    grown = both[1].with_table({"id": [str(i) for i in range(10, 61)]})
    blinded.clear()
    more = [both[0], grown]
    check(more, run(more, protocol="dh"))
    assert sum(blinded) == 31
