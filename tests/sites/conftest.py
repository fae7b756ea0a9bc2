"""Parties' folders with certificates of one federation, made without FLARE."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, Site

PEOPLE = 80


class Root:
    """A federation's root certificate, and what it issues."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.certificate = self._signed("federation", self.key, "federation", 3650, ca=True)

    def _signed(
        self, name: str, key: rsa.RSAPrivateKey, issuer: str, days: int, *, ca: bool = False
    ) -> x509.Certificate:
        def called(what: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, what)])

        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(called(name))
            .issuer_name(called(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=min(0, days) - 1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def issue(self, startup: Path, name: str, days: int = 365) -> None:
        """Write a start-up kit's certificate, key and root."""
        startup.mkdir(parents=True, exist_ok=True)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM
        certificate = self._signed(name, key, "federation", days)
        (startup / "client.crt").write_bytes(certificate.public_bytes(pem))
        private = key.private_bytes(
            pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (startup / "client.key").write_bytes(private)
        (startup / "client.key").chmod(0o600)
        (startup / "rootCA.pem").write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="session")
def root() -> Root:
    return Root()


@pytest.fixture
def tables() -> dict[str, pl.DataFrame]:
    """``bank`` has the label, ``shop`` the same people."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PEOPLE, 4)).round(3)
    ids = [f"C{i:04}" for i in range(PEOPLE)]
    bought = np.where(x.sum(1) > 0, "yes", "no")
    return {
        "bank": pl.DataFrame({"id": ids, "bought": bought, "a": x[:, 0], "b": x[:, 1]}),
        "shop": pl.DataFrame({"id": ids, "c": x[:, 2], "d": x[:, 3]}),
    }


@pytest.fixture
def make_party(
    tmp_path: Path, root: Root, tables: dict[str, pl.DataFrame]
) -> Callable[..., PartyFolder]:
    """Make a party's folder with a certificate; ``policy`` is that of its party file."""

    def make(name: str, *, by: Root = root, days: int = 365, **policy: Any) -> PartyFolder:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        tables[name].write_csv(folder / "table.csv")
        file: dict[str, Any] = {"table": "table.csv", "policy": policy}
        if name == "bank":
            file["label"] = "bought"
        (folder / "party.yaml").write_text(yaml.safe_dump(file))
        site = Site(name=name, federation="trial", host="localhost")
        made = PartyFolder(folder, site).write(site)
        by.issue(made.kit / "startup", name, days)
        return made

    return make


@pytest.fixture
def contract() -> Contract:
    return Contract(
        name="small",
        parties=["bank", "shop"],
        active="bank",
        method={"name": "split", "epochs": 4},  # type: ignore[arg-type]
        compare="none",
        seeds=[0],
        purpose="credit",
        classes=2,
    )
