"""The checks before anything else: table, ids, policy, keys, clock, connection, versions."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

import interlace
from interlace.data.columns import column_notes
from interlace.engines.sealed import common_name
from interlace.errors import InterlaceError
from interlace.report.words import columns_read
from interlace.runner import make_party, read_alone
from interlace.sites.account import Account
from interlace.sites.folder import PartyFolder
from interlace.sites.provision import CLASSES, PERMISSIONS, fingerprint_of, flare
from interlace.sites.service import process_of

SOON = timedelta(days=30)
SPACE = 2 * 10**9  # bytes that checkpoints and models may want
CONNECT_SECONDS = 10.0

Verdict = Literal["good", "doubt", "bad"]


class Finding(NamedTuple):
    """What one check came to, in plain words; ``way_out`` where something is to be done."""

    verdict: Verdict
    what: str
    way_out: str = ""


def check(folder: PartyFolder, *, connect: bool = True) -> Iterator[Finding]:
    """Check a party's folder, one thing after the other.

    Args:
        folder: The party's.
        connect: Whether to try the server too.
    """
    checks: list[Callable[[PartyFolder], Iterator[Finding]]] = [
        _versions,
        _table,
        _policy,
        _disk,
        kits,
    ]
    if connect:
        checks.append(_connection)
    said = set()
    for one in checks:
        try:
            yield from one(folder)
        except (InterlaceError, OSError) as e:
            if str(e) not in said:
                yield Finding("bad", str(e))
            said.add(str(e))


def _versions(_folder: PartyFolder) -> Iterator[Finding]:
    here = f"interlace {interlace.__version__} on Python {platform.python_version()}"
    try:
        there = version("nvflare")
    except PackageNotFoundError:
        yield Finding(
            "bad", f"{here}, without NVIDIA FLARE", "Install it: pip install 'interlace[flare]'"
        )
        return
    good = there.startswith("2.9.")
    yield Finding(
        "good" if good else "bad",
        f"{here}, NVIDIA FLARE {there}",
        "" if good else "Sites talk to FLARE 2.9 alone: pip install 'interlace[flare]'",
    )


def _table(folder: PartyFolder) -> Iterator[Finding]:
    file = folder.read()
    if file.table is None:
        yield Finding(
            "doubt",
            "no table: this party can only host the server, drive a horizontal federation, or be "
            "an arbiter",
            "Name it as `table:` in party.yaml",
        )
        return
    party = make_party(folder.name, file, label_needed=True)
    said = f"{len(party):,} people and {len(party.columns)} columns"
    label = f", label {', '.join(party.labels_columns)}" if party.has_label else ", no label"
    yield Finding("good", f"table {party.file}: {said}{label}")
    if party.id_rule.columns:
        yield Finding("good", f"ids by {', '.join(party.id_rule.columns)}")
    for note in party.keys.report.notes:
        yield Finding("doubt", f"ids: {note}")
    read, became = read_alone(party, np.arange(len(party))), defaultdict[str, list[str]](list)
    for column in read:
        became[column.became].append(column.name)
    if read:
        yield Finding("good", f"columns read as {columns_read(became)}")
    for note in column_notes(read, party.categories):
        yield Finding("doubt", f"columns: {note}")


def _policy(folder: PartyFolder) -> Iterator[Finding]:
    if folder.stopped:
        yield Finding(
            "bad",
            "everything is stopped: nothing leaves and nothing is answered",
            "`interlace party stop --lift` ends it",
        )
    policy = folder.read().policy
    if policy.budget is not None and not policy.guards:
        yield Finding(
            "doubt",
            "the policy has a privacy budget and no guard that could claim one: every run will be "
            "refused",
            "Put `clip` and noise under `guards:` in party.yaml",
        )
    if policy.budget is not None:
        spent = Account(folder.root).spent()
        yield Finding(
            "good",
            f"privacy spent in all runs: epsilon {spent.epsilon:.3g} of {policy.budget.epsilon:g}, "
            f"delta {spent.delta:.1g} of {policy.budget.delta:g}",
        )
    rules = len(policy.approve)
    if rules:
        yield Finding("good", f"{rules} standing rule{'s' * (rules > 1)} may approve a run")
    else:
        yield Finding("good", "no run begins here without `interlace approve`")


def _disk(folder: PartyFolder) -> Iterator[Finding]:
    free = shutil.disk_usage(folder.root).free
    yield Finding(
        "good" if free >= SPACE else "doubt",
        f"{free / 1e9:,.1f} GB free for checkpoints and models",
        "" if free >= SPACE else "Free some space; a run that finds none stops, and can go on",
    )


def kits(folder: PartyFolder) -> Iterator[Finding]:
    """Check a party's certificates and keys, and that jobs bring it no code."""
    if not folder.kit.exists():
        yield Finding(
            "bad", "no certificate yet", "`interlace party request`, then `interlace party install`"
        )
        return
    kits = {folder.kit: folder.name}
    if folder.user.exists():
        kits[folder.user] = ""
    if folder.server.exists():
        kits[folder.server] = folder.site.host
    for kit, name in kits.items():
        yield from _certificate(kit, name)
    yield from _held(folder.kit / "local")


def _held(local: Path) -> Iterator[Finding]:
    """Whether a site's own settings are those that :func:`harden` wrote."""
    settings, rights = local / "resources.json", local / "authorization.json"
    try:
        kept = json.loads(settings.read_text())
        classes = (kept["class_allow_list"], kept["class_list_enforcement_mode"])
        permissions = json.loads(rights.read_text())["permissions"]
        held = classes == (CLASSES, "enforce") and permissions == PERMISSIONS
    except (OSError, ValueError, KeyError, TypeError):
        held = False
    if held:
        yield Finding("good", "no code comes with a job: only the installed package runs here")
    else:
        yield Finding(
            "bad",
            f"{settings} or {rights.name} does not hold jobs to the installed package",
            "`interlace party install`, with the certificates you have, writes them anew",
        )


def _certificate(kit: Path, name: str) -> Iterator[Finding]:
    stem = "server" if kit.name == "server" else "client"
    file, key_file = (kit / "startup" / f"{stem}.{end}" for end in ("crt", "key"))
    again = "Ask for another: `interlace party request`, and the coordinator approves it --again"
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    root = x509.load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())
    what = f"{kit.name} certificate of '{common_name(certificate)}'"
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield Finding("bad", f"{what}: issued by another federation", again)
        return
    if name and common_name(certificate)[:64] != name[:64]:
        yield Finding("bad", f"{what}, and this is '{name}'", again)
        return
    key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    if key.public_key() != certificate.public_key():
        yield Finding("bad", f"{what}: it does not belong to the private key beside it", again)
        return
    if key_file.stat().st_mode & 0o077:
        yield Finding(
            "bad", f"other users of this machine can read {key_file}", f"chmod 600 {key_file}"
        )
    now, begins, ends = (
        datetime.now(UTC),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    if now < begins:
        yield Finding(
            "bad",
            f"by this machine's clock ({now:%d %B %Y %H:%M} UTC) the {what} is not valid yet; it "
            f"was issued on {begins:%d %B %Y %H:%M} UTC",
            "Set the clock (timedatectl set-ntp true)",
        )
    elif now > ends:
        yield Finding("bad", f"{what} expired on {ends:%d %B %Y}", again)
    elif now > ends - SOON:
        yield Finding("doubt", f"{what} expires on {ends:%d %B %Y}", again)
    else:
        yield Finding("good", f"{what}, valid until {ends:%d %B %Y}")


def _connection(folder: PartyFolder) -> Iterator[Finding]:
    """Shake hands with the server, as FLARE would; then FLARE's own check of the kit."""
    if not folder.kit.exists():
        return
    host, port, startup = folder.site.host, folder.site.port, folder.kit / "startup"
    where = f"{host}:{port}"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as raw:
            with context.wrap_socket(raw, server_hostname=host) as secured:
                # In TLS 1.3 a server says only now whether it takes our certificate.
                secured.settimeout(1.0)
                with suppress(TimeoutError):
                    secured.recv(1)
            yield Finding("good", f"server {where}: there, of this federation, and it takes us")
    except socket.gaierror as e:
        yield Finding(
            "bad",
            f"server {host}: this network does not know that name ({e.strerror})",
            "Ask whoever hosts it for its address, and enter it in the DNS or in /etc/hosts",
        )
        return
    except ssl.SSLCertVerificationError as e:
        yield Finding(
            "bad",
            f"server {where}: its certificate is not good here ({e.verify_message})",
            f"Is it this federation's server, and are both clocks right? The root here is "
            f"{fingerprint_of((startup / 'rootCA.pem').read_bytes())}",
        )
        return
    except ssl.SSLError as e:
        yield Finding(
            "bad",
            f"server {where}: it does not take this site's certificate ({e.reason})",
            "Compare the root's fingerprint with whoever hosts the server, and look for an expired "
            "certificate or a wrong clock on either side",
        )
        return
    except OSError as e:
        yield Finding(
            "bad",
            f"server {where}: nobody answers ({e.strerror or e})",
            "Is it up (`interlace party up` at the party that hosts it), and do the firewalls let "
            f"this site reach TCP port {port} there?",
        )
        return
    if process_of(folder.kit) is not None:
        yield Finding("good", "this site is up")
        return
    found = flare("preflight-check", "-p", folder.kit)
    passed = found.get("overall") == "pass"
    yield Finding(
        "good" if passed else "bad",
        f"FLARE's own check of the kit: {found.get('overall')}",
        "" if passed else json.dumps(found.get("checks", ""))[:500],
    )
