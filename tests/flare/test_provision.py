"""Certificates and kits, made the distributed way by FLARE's own commands."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from interlace.errors import JobError, Refused
from interlace.sites import provision
from interlace.sites.check import check
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, Site

Join = Callable[..., PartyFolder]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> provision.Authority:
    made = provision.Authority(tmp_path_factory.mktemp("coordinator"))
    made.create("trial", "bank.example.org", 8123)
    return made


def folder(root: Path, name: str, **site: bool) -> PartyFolder:
    (root / name).mkdir()
    (root / name / "party.yaml").write_text("table: t.csv\n")
    (root / name / "t.csv").write_text("id,x\na,1\nb,2\n")
    return PartyFolder(root / name, Site(name=name)).write(Site(name=name, **site))


@pytest.fixture
def join(authority: provision.Authority, tmp_path: Path) -> Join:
    """A party that has gone the whole way."""

    def joined(name: str, **site: bool) -> PartyFolder:
        party = folder(tmp_path, name, **site)
        invitation = provision.Invitation.read(authority.invitation)
        issued = authority.approve(provision.request(party, invitation))
        provision.install(party, issued, authority.fingerprint)
        return PartyFolder.open(party.root)

    return joined


def test_private_keys_stay_where_they_are_made(
    authority: provision.Authority, tmp_path: Path
) -> None:
    party = folder(tmp_path, "shy")
    request = provision.request(party, provision.Invitation.read(authority.invitation))
    issued = authority.approve(request)
    for sent in (request, issued, authority.invitation):
        assert b"PRIVATE KEY" not in _unpacked(sent)
    assert list(party.root.glob("requests/*/*.key"))
    assert not list(authority.root.rglob("shy*.key"))


def test_a_kit_lets_no_code_in_and_no_log_out(join: Join) -> None:
    party = join("host", hosts=True)
    for kit in (party.kit, party.server):
        settings = json.loads((kit / "local" / "resources.json").read_text())
        assert settings["class_list_enforcement_mode"] == "enforce"
        assert settings["class_allow_list"] == provision.CLASSES
        assert settings["allow_log_streaming"] is False
        assert not any("log" in c["id"] for c in settings["components"])
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert set(rights) == {"lead"}
        assert rights["lead"]["byoc"] == rights["lead"]["shell_commands"] == "none"
    server = (party.server / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in server
    assert str(party.server / "jobs") in server
    assert all(f.stat().st_mode & 0o077 == 0 for f in (party.kit / "startup").iterdir())


def test_only_who_drives_has_a_user_and_only_who_hosts_a_server(join: Join) -> None:
    party = join("answers", drives=False)
    assert party.kit.exists()
    assert not party.user.exists()
    assert not party.server.exists()
    assert (party.site.host, party.site.port) == ("bank.example.org", 8123)


def test_a_name_is_given_once(authority: provision.Authority, join: Join, tmp_path: Path) -> None:
    join("taken")
    (tmp_path / "elsewhere").mkdir()
    other = folder(tmp_path / "elsewhere", "taken")
    request = provision.request(other, provision.Invitation.read(authority.invitation))
    with pytest.raises(Refused, match="has its certificates already"):
        authority.approve(request)
    provision.install(other, authority.approve(request, again=True), authority.fingerprint)


def test_there_is_one_server(authority: provision.Authority, tmp_path: Path, join: Join) -> None:
    if not (authority.root / "issued" / "server").exists():
        join("host", hosts=True)
    second = folder(tmp_path, "second", hosts=True)
    request = provision.request(second, provision.Invitation.read(authority.invitation))
    with pytest.raises(Refused, match="hosts this federation's server already"):
        authority.approve(request)


def test_another_fingerprint_installs_nothing(
    authority: provision.Authority, tmp_path: Path
) -> None:
    party = folder(tmp_path, "careful")
    invitation = provision.Invitation.read(authority.invitation)
    issued = authority.approve(provision.request(party, invitation))
    wrong = authority.fingerprint[:-2] + ("00" if authority.fingerprint[-2:] != "00" else "11")
    with pytest.raises(Refused, match="another fingerprint than this") as refused:
        provision.install(party, issued, wrong)
    assert authority.fingerprint not in str(refused.value)  # or somebody types it off
    assert not party.kit.exists()


def test_a_request_does_not_install(authority: provision.Authority, tmp_path: Path) -> None:
    party = folder(tmp_path, "hasty")
    request = provision.request(party, provision.Invitation.read(authority.invitation))
    with pytest.raises(Refused, match="is a request: it goes to the coordinator"):
        provision.install(party, request, authority.fingerprint)


def test_certificates_for_other_keys_do_not_install(
    authority: provision.Authority, join: Join, tmp_path: Path
) -> None:
    join("first")
    thief = folder(tmp_path, "thief")
    provision.request(thief, provision.Invitation.read(authority.invitation))
    issued = authority.root / "issued" / "first.certificates.zip"
    with pytest.raises(Refused, match="each party installs its own"):
        provision.install(thief, issued, authority.fingerprint)
    assert not thief.kit.exists()


@pytest.mark.parametrize("name", ["../up", "server", "a b"])
def test_a_request_under_a_bad_name_is_refused(
    name: str, authority: provision.Authority, tmp_path: Path
) -> None:
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("request.json", json.dumps({"name": name, "project": "trial"}))
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("site.zip", inner.read_bytes())
    with pytest.raises((Refused, JobError), match="cannot be a site's name"):
        authority.approve(bundle)


def test_garbage_is_no_request(authority: provision.Authority, tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04 garbage", b"\0" * 1000):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(Refused):
            authority.approve(tmp_path / "x.zip")


@pytest.mark.parametrize(
    "asked",
    [b"[]", b"{}", b'{"name": 1}', b"\xff", b"[" * 100_000, b'{"name": "x\x1b[2K"}'],
    ids=["list", "empty", "number", "no text", "deep", "control"],
)
def test_a_request_that_is_none_is_refused(
    asked: bytes, authority: provision.Authority, tmp_path: Path
) -> None:
    inner, bundle = tmp_path / "inner.zip", tmp_path / "bundle.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("request.json", asked)
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("site.zip", inner.read_bytes())
    with pytest.raises((Refused, JobError)):
        authority.approve(bundle)


def test_a_name_that_looks_like_one_that_was_given_is_refused(
    authority: provision.Authority, join: Join, tmp_path: Path
) -> None:
    join("north-shop")
    other = folder(tmp_path, "North_Shop")
    request = provision.request(other, provision.Invitation.read(authority.invitation))
    for again in (False, True):
        with pytest.raises(Refused, match="looks like 'north-shop'"):
            authority.approve(request, again=again)


def test_an_invitation_names_a_machine(tmp_path: Path) -> None:
    for host in ("../x", "a b", "a\x1b[2K", "", "a" * 300):
        (tmp_path / "i.yaml").write_text(json.dumps({"federation": "trial", "host": host}))
        with pytest.raises(JobError, match="not an invitation"):
            provision.Invitation.read(tmp_path / "i.yaml")


def test_the_checks_tell_what_is_wrong(join: Join) -> None:
    party = join("checked")
    found = list(check(party, connect=False))
    assert [f for f in found if f.verdict == "bad"] == []
    site = party.site.model_copy(update={"name": "renamed"})
    said = _bad(party.write(site))
    assert "certificate of 'checked', and this is 'renamed'" in said
    party.write(party.site)
    for name, change in (
        ("resources.json", {"class_allow_list": ["interlace.sites."]}),
        ("resources.json", {"class_list_enforcement_mode": "warn"}),
        ("authorization.json", {"permissions": {"lead": "any"}}),
    ):
        file = party.kit / "local" / name
        before = file.read_text()
        file.write_text(json.dumps(json.loads(before) | change))
        assert "does not hold jobs to the installed package" in _bad(party)
        file.write_text(before)
    assert _bad(party) == ""
    (party.kit / "local" / "resources.json").unlink()
    assert "does not hold jobs to the installed package" in _bad(party)
    (party.kit / "startup" / "client.key").chmod(0o644)
    assert "other users of this machine can read" in _bad(party)
    (party.root / "t.csv").unlink()
    assert "t.csv" in _bad(party)
    party.stop_file.touch()
    assert "everything is stopped" in _bad(party)
    unreachable = party.site.model_copy(update={"host": "nowhere.invalid"})
    assert "does not know that name" in _bad(party.write(unreachable), connect=True)


def test_a_whole_federation_on_one_machine(tmp_path: Path) -> None:
    made = provision.together(tmp_path, ["a", "b"], name="trial", port=8199)
    assert [f.server.exists() for f in made] == [True, False]
    with pytest.raises(JobError, match="holds a federation already"):
        provision.together(tmp_path, ["a", "b"], name="trial", port=8199)
    contract = Contract(name="x", parties=["a", "b"], active="a")
    assert contract.parties == [f.name for f in made]


def _bad(party: PartyFolder, *, connect: bool = False) -> str:
    return "\n".join(f.what for f in check(party, connect=connect) if f.verdict == "bad")


def _unpacked(file: Path) -> bytes:
    """All bytes of a file, and of the files packed in it."""
    if file.suffix != ".zip":
        return yaml.safe_dump(yaml.safe_load(file.read_text())).encode()
    out = b""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".zip"):
                inside = file.parent / f"inside-{name}"
                inside.write_bytes(content)
                content = _unpacked(inside)
                inside.unlink()
            out += content
    return out
