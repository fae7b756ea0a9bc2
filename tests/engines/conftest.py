"""Two sites' identities, without NVIDIA FLARE: a root, and certificates that it has issued."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from interlace.engines.sealed import Identity

Issue = Callable[..., Identity]


class Authority:
    """Who issues certificates in a federation."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
        self.certificate = self._certificate(self.name, self.key.public_key(), 10)

    def _certificate(self, name: x509.Name, key: rsa.RSAPublicKey, days: int) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self.name)
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=20))
        return builder.not_valid_after(now + timedelta(days=days)).sign(self.key, hashes.SHA256())

    def issue(self, party: str, days: int = 10) -> Identity:
        """A party's identity, valid for so many more days."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, party)])
        certificate = self._certificate(name, key.public_key(), days)
        return Identity(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            certificate.public_bytes(Encoding.PEM),
            self.certificate.public_bytes(Encoding.PEM),
        )


@pytest.fixture(scope="session")
def authority() -> Authority:
    """The federation's."""
    return Authority()


@pytest.fixture(scope="session")
def other_authority() -> Authority:
    """Another federation's."""
    return Authority()


@pytest.fixture(scope="session")
def hospital(authority: Authority) -> Identity:
    """The driver's identity."""
    return authority.issue("hospital")


@pytest.fixture(scope="session")
def lab(authority: Authority) -> Identity:
    """The partner's identity."""
    return authority.issue("lab")
