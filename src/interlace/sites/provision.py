"""Certificates and start-up kits, by NVIDIA FLARE's own provisioning done the distributed way.

::

    coordinator (has the root key)              each party
      federation new ── invitation ──────────►  party request      keys are made here, and stay
      federation approve ◄── request ─────────
                     ── certificates ────────►  party install      checks the root's fingerprint

Nothing that travels is secret: an invitation, requests without their private keys, certificates.
Nothing of it is trusted for the way it came either: each side reads a fingerprint to the other over
another channel.

A kit as FLARE makes it lets a user bring code and run shell commands, streams its error log to the
server, and keeps jobs under the machine's temporary folder. :func:`harden` takes that away.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from interlace.errors import InterlaceError, JobError, Refused
from interlace.files import write_whole
from interlace.sites import NOT_INSTALLED
from interlace.sites.contract import NAME, alike, check_site_name
from interlace.sites.folder import PartyFolder, Site

Kind = Literal["site", "user", "server"]
KINDS: tuple[Kind, ...] = ("site", "user", "server")
# All that a job may load here. FLARE takes these for beginnings, and calls whatever a module holds
# under a name: with a whole module here, a job that nobody approved could call any function in it.
CLASSES = [
    "interlace.sites.hub.Hub",
    "interlace.sites.job.Site",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
]
LARGEST = 2**20  # bytes of a request or of certificates
SCHEME, SECURITY = "tcp", "mtls"

# Who may do what. FLARE asks these of every command of a user and of every job. Roles that are not
# listed may do nothing; code that comes with a job ("byoc") is refused whoever brings it.
PERMISSIONS = {
    "lead": {
        "submit_job": "any",
        "manage_job": "n:submitter",
        "download_job": "n:submitter",
        "view": "any",
        "clone_job": "none",
        "operate": "none",
        "shell_commands": "none",
        "byoc": "none",
    }
}


class Invitation(BaseModel):
    """What a party must know of a federation to join it: none of it is secret."""

    model_config = ConfigDict(extra="forbid")

    federation: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
    host: str = Field(pattern=r"^[A-Za-z0-9.-]{1,253}$")
    port: int = Field(default=8002, gt=0, lt=65536)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Read an invitation file.

        Raises:
            JobError: it is none.
        """
        try:
            return cls.model_validate(yaml.safe_load(path.read_text()))
        except (ValidationError, yaml.YAMLError, UnicodeError) as e:
            raise JobError(f"{path} is not an invitation to a federation") from e


class _Request(BaseModel):
    """What interlace reads of FLARE's request for a certificate, which somebody else has made."""

    name: str
    project: str = ""
    kind: str = ""

    @classmethod
    def read(cls, text: bytes) -> _Request:
        """Read it.

        Raises:
            Refused: it is none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as e:
            raise Refused("this is not a request of NVIDIA FLARE's") from e


_USERS = "@user.interlace"


def user_name(party: str) -> str:
    """What FLARE calls the user of a party; it wants the form of an address."""
    return party + _USERS


def party_of(user: str) -> str:
    """The party whose user FLARE calls so."""
    return user.removesuffix(_USERS)


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 fingerprint of a certificate in PEM, as ``SHA256:AB:CD:…``."""
    loaded = x509.load_pem_x509_certificate(certificate)
    return "SHA256:" + loaded.fingerprint(hashes.SHA256()).hex(":").upper()


def _fingerprint(told: str) -> str:
    """A fingerprint that somebody has typed, in the form that :func:`fingerprint_of` gives.

    Raises:
        JobError: it is none.
    """
    digits = re.sub(r"[\s:]", "", told.upper()).removeprefix("SHA256")
    if not re.fullmatch("[0-9A-F]{64}", digits):
        raise JobError(
            "a fingerprint is SHA256: and 32 pairs of the digits 0 to 9 and A to F, as `interlace "
            "federation new` prints it; ask the coordinator to read it out once more"
        )
    return "SHA256:" + ":".join(digits[i : i + 2] for i in range(0, 64, 2))


def digest_of(file: Path) -> str:
    """The first 16 bytes of a file's SHA-256 in groups of four digits, to be read out aloud."""
    digits = sha256(file.read_bytes()).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


# -- the coordinator ---------------------------------------------------------------------------


class Authority:
    """The folder of whoever coordinates a federation: its root key and what it has issued.

    It takes part in no run. It can be put away once all parties have their certificates.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def invitation(self) -> Path:
        """The file to hand to every party."""
        return self.root / "invitation.yaml"

    @property
    def fingerprint(self) -> str:
        """The root certificate's, to be told over another channel than files go by."""
        return fingerprint_of((self.root / "ca" / "rootCA.pem").read_bytes())

    def create(self, name: str, host: str, port: int) -> Invitation:
        """Make the root key, and the invitation.

        Raises:
            JobError: the folder is there already, or the names do not do.
        """
        if (self.root / "ca").exists():
            raise JobError(
                f"{self.root} holds a federation already; choose another by --out, or go on with "
                "`interlace federation approve`"
            )
        if not NAME.fullmatch(name):
            raise JobError(f"'{name[:70]}' cannot be a federation's name: letters, digits, - and _")
        if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
            raise JobError(f"'{host[:70]}' is not the name of a machine in the network")
        self.root.mkdir(parents=True, exist_ok=True)
        profile = {
            "name": name,
            "scheme": SCHEME,
            "connection_security": SECURITY,
            "server": {"host": host, "fed_learn_port": port, "admin_port": port},
        }
        _yaml(self._profile, profile)
        flare("cert", "init", "--profile", self._profile, "-o", self.root / "ca")
        invitation = Invitation(federation=name, host=host, port=port)
        _yaml(self.invitation, invitation.model_dump())
        return invitation

    def asked(self, bundle: Path) -> tuple[str, list[Kind]]:
        """Who asks for certificates, and for which.

        Raises:
            Refused: it is no request, or asks for what this federation does not give.
        """
        invitation = Invitation.read(self.invitation)
        found = {kind: _Request.read(_member(blob, "request.json")) for kind, blob in _open(bundle)}
        if "site" not in found:
            raise Refused(f"{bundle} asks for no certificate of a site")
        party = found["site"].name
        check_site_name(party)
        if party == invitation.host:
            raise Refused(
                f"'{party}' is what the server's machine is called, whose certificate would pass "
                "for that party's; the party needs another name"
            )
        due = {"site": party, "user": user_name(party), "server": invitation.host}
        for kind, request in found.items():
            if request.project != invitation.federation:
                raise Refused(
                    f"{bundle} asks to join '{request.project[:70]}', and this is "
                    f"'{invitation.federation}'; the party needs this federation's invitation"
                )
            if request.name != due[kind] or request.kind != kind:
                raise Refused(f"{bundle} asks for a {kind} called '{request.name[:70]}'")
        return party, list(found)

    def approve(self, bundle: Path, *, again: bool = False) -> Path:
        """Sign what a party asks for.

        Args:
            bundle: Its request.
            again: The name was given before, and the same organisation has new keys.

        Returns:
            What to send back: certificates, and nothing secret.

        Raises:
            Refused: as for :meth:`asked`; or the name, or the place of the server, is taken.
        """
        party, kinds = self.asked(bundle)
        out = self.root / "issued" / f"{party}.certificates.zip"
        for other in (f.name.split(".")[0] for f in out.parent.glob("*.certificates.zip")):
            if other != party and alike(other) == alike(party):
                raise Refused(
                    f"'{party}' looks like '{other}', which has its certificates already; the "
                    "party needs another name"
                )
        if out.exists() and not again:
            raise Refused(
                f"'{party}' has its certificates already; if the same organisation asks once more, "
                "say --again, else it needs another name"
            )
        hosts = self.root / "issued" / "server"
        if "server" in kinds and hosts.exists() and hosts.read_text() != party:
            raise Refused(f"'{hosts.read_text()}' hosts this federation's server already")
        out.parent.mkdir(exist_ok=True)
        signed = {}
        with tempfile.TemporaryDirectory(prefix="interlace-") as scratch:
            for kind, blob in _open(bundle):
                request, answer = (
                    Path(scratch) / f"{kind}.{end}.zip" for end in ("request", "signed")
                )
                request.write_bytes(blob)
                ca = ("--ca-dir", self.root / "ca", "--profile", self._profile)
                flare("cert", "approve", request, *ca, "--out", answer)
                signed[f"{kind}.zip"] = answer.read_bytes()
        _zip(out, signed)
        if "server" in kinds:
            write_whole(hosts, party.encode())
        return out

    @property
    def _profile(self) -> Path:
        return self.root / "federation.yaml"


# -- a party -----------------------------------------------------------------------------------


def request(folder: PartyFolder, invitation: Invitation) -> Path:
    """Make a party's keys and the request for their certificates.

    Returns:
        What to send to the coordinator: no private key is in it.

    Raises:
        JobError: the party is in another federation already.
    """
    site = folder.site
    if site.federation and site.federation != invitation.federation and folder.kit.exists():
        raise JobError(
            f"'{site.name}' is in the federation '{site.federation}'; make another folder for "
            f"'{invitation.federation}' by `interlace party new`"
        )
    organisation = site.name.replace("-", "_")
    common = {"org": organisation}
    wanted: dict[Kind, dict[str, Any]] = {
        "site": {"name": site.name, "type": "client"},
        "user": {"name": user_name(site.name), "type": "admin", "role": "lead"},
        "server": {
            "name": invitation.host,
            "type": "server",
            "fed_learn_port": invitation.port,
            "admin_port": invitation.port,
            "host": invitation.host,
        },
    }
    parts = {}
    for kind in KINDS:
        if (kind == "user" and not site.drives) or (kind == "server" and not site.hosts):
            continue
        where = folder.root / "requests" / kind
        if where.exists():
            shutil.rmtree(where)
        where.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="interlace-") as scratch:
            definition = Path(scratch) / "participant.yaml"
            participants = [{**wanted[kind], **common}]
            _yaml(definition, {"name": invitation.federation, "participants": participants})
            made = flare("cert", "request", "-p", definition, "--out", where)
        parts[f"{kind}.zip"] = Path(made["request_zip"]).read_bytes()
    joined = {k: getattr(invitation, k) for k in ("federation", "host", "port")}
    folder.write(site.model_copy(update=joined))
    out = folder.root / f"{site.name}.request.zip"
    _zip(out, parts)
    return out


def install(folder: PartyFolder, certificates: Path, fingerprint: str) -> list[Kind]:
    """Put a party's start-up kits together from its own keys and the certificates that came back.

    Args:
        folder: The party's.
        certificates: What the coordinator sent.
        fingerprint: The root certificate's, as the coordinator read it out.

    Raises:
        JobError: that is no fingerprint.
        Refused: these are no certificates, or of another federation, or for other keys.
    """
    fingerprint = _fingerprint(fingerprint)
    installed = []
    where = {"site": folder.kit, "user": folder.user, "server": folder.server}
    with tempfile.TemporaryDirectory(prefix="interlace-") as scratch:
        for kind, blob in _open(certificates):
            requested = folder.root / "requests" / kind
            _belong(certificates, blob, requested, fingerprint)
            signed = Path(scratch) / f"{kind}.signed.zip"  # FLARE goes by the name
            signed.write_bytes(blob)
            made = flare(
                "package",
                signed,
                "--request-dir",
                requested,
                "--fingerprint",
                fingerprint,
                "-w",
                Path(scratch) / kind,
            )
            kit = where[kind]
            kit.mkdir(mode=0o700, exist_ok=True)
            for part in ("startup", "local"):
                if (kit / part).exists():
                    shutil.rmtree(kit / part)
                shutil.move(Path(made["output_dir"]) / part, kit / part)
            harden(kit, kind)
            installed.append(kind)
    return installed


def _belong(certificates: Path, blob: bytes, requested: Path, fingerprint: str) -> None:
    """Refuse in our words what FLARE would in its own, which quote the fingerprint that came."""
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        names = archive.namelist()
        if "rootCA.pem" not in names:
            raise Refused(
                f"{certificates} is a request: it goes to the coordinator, and what comes back is "
                "for `interlace party install`"
            )
        root = _limited(archive, "rootCA.pem")
    if fingerprint_of(root) != fingerprint:
        raise Refused(
            f"the root certificate in {certificates} has another fingerprint than this; have the "
            "coordinator read it out once more, and if it differs still, do not trust the file"
        )
    if any(n.endswith(".crt") and not (requested / f"{n[:-4]}.key").exists() for n in names):
        raise Refused(
            f"{certificates} is for keys that are not in {requested}; each party installs its "
            "own, into the folder that asked"
        )


def harden(kit: Path, kind: Kind) -> None:
    """Take from a kit what an organisation would not want, and bring the server's files home."""
    kit = kit.resolve()
    for file in (kit / "startup").iterdir():
        file.chmod(stat.S_IRWXU if file.suffix == ".sh" else stat.S_IRUSR | stat.S_IWUSR)
    if kind == "user":
        return
    local = kit / "local"
    settings = json.loads((local / "resources.json.default").read_text())
    settings["class_list_enforcement_mode"] = "enforce"
    settings["class_allow_list"] = CLASSES
    settings["allow_log_streaming"] = False
    logs = ("site_log_streamer", "log_receiver")  # an error log can quote a table
    settings["components"] = [c for c in settings["components"] if c["id"] not in logs]
    if kind == "server":
        # By default all servers of a machine share these, and take each other's jobs.
        storage = settings["snapshot_persistor"]["args"]["storage"]
        storage["args"]["root_dir"] = str(kit / "snapshots")
        for component in settings["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(kit / "jobs")
    _json(local / "resources.json", settings)
    _json(local / "authorization.json", {"format_version": "1.0", "permissions": PERMISSIONS})


# -- FLARE's commands ---------------------------------------------------------------------------


def flare(*command: object) -> dict[str, Any]:
    """Run one of FLARE's own commands, and return what it says.

    Raises:
        Refused: it did not do it; the text is FLARE's.
        InterlaceError: FLARE is not installed.
    """
    try:
        from nvflare import cli
    except ModuleNotFoundError as e:
        raise InterlaceError(NOT_INSTALLED) from e
    # Its command line is what FLARE documents; to start a process for each takes half a second.
    said, errors, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["nvflare", "--format", "json", *map(str, command)]
    try:
        with redirect_stdout(said), redirect_stderr(errors):
            cli.main()
    except SystemExit:
        pass  # it ends so; what it says tells how
    finally:
        sys.argv = argv
    for text in reversed(said.getvalue().splitlines()):
        if text.startswith("{"):
            answer = json.loads(text)
            if answer.get("status") == "ok":
                return dict(answer["data"])
            raise Refused(
                f"{answer.get('message', 'it failed')} {answer.get('hint') or ''}".strip()
            )
    last = (errors.getvalue().strip().splitlines() or ["no word"])[-1]
    raise InterlaceError(f"`nvflare {command[0]}` did not do it: {last[:300]}")


def environment() -> dict[str, str]:
    """The environment for FLARE's own programs, whose scripts call whatever `python3` is first."""
    first = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{first}{os.pathsep}{os.environ.get('PATH', '')}"}


# -- files ---------------------------------------------------------------------------------------


def _open(bundle: Path) -> list[tuple[Kind, bytes]]:
    """The parts of a request or of certificates, which somebody else has made."""
    try:
        with zipfile.ZipFile(bundle) as archive:
            return [
                (kind, _limited(archive, f"{kind}.zip"))
                for kind in KINDS
                if f"{kind}.zip" in archive.namelist()
            ]
    except FileNotFoundError:
        raise JobError(f"there is no file {bundle}") from None
    except (zipfile.BadZipFile, ValueError) as e:
        raise Refused(f"{bundle} is neither a request nor certificates") from e


def _member(blob: bytes, name: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            return _limited(archive, name)
    except (zipfile.BadZipFile, KeyError, ValueError) as e:
        raise Refused("this is not a request of NVIDIA FLARE's") from e


def _limited(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > LARGEST:
        raise ValueError("too large")
    return archive.read(name)


def _zip(path: Path, parts: dict[str, bytes]) -> None:
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    write_whole(path, blob.getvalue())


def _yaml(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, yaml.safe_dump(content, sort_keys=False).encode())


def _json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2).encode())


def together(root: Path, names: list[str], *, name: str, port: int) -> list[PartyFolder]:
    """A whole federation on this machine, for trying: the first party hosts the server.

    Args:
        root: Where the parties' folders and the coordinator's lie.
        names: The parties.
        name: The federation's.
        port: The server's.

    Raises:
        JobError: fewer than two parties, or a folder is there already.
    """
    if len(names) < 2:
        raise JobError("a federation takes at least two parties")
    authority = Authority(root / name)
    invitation = authority.create(name, "localhost", port)
    folders = []
    for i, party in enumerate(names):
        check_site_name(party)
        site = Site(name=party, hosts=i == 0)
        if (root / party / "kit").exists():
            raise JobError(f"{root / party} is in a federation already")
        folder = PartyFolder((root / party).resolve(), site).write(site)
        issued = authority.approve(request(folder, invitation))
        folder = PartyFolder.open(root / party)
        install(folder, issued, authority.fingerprint)
        folders.append(folder)
    return folders
