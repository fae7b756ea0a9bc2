"""A conversation between two sites that whoever relays it cannot read, change, repeat or reorder.

Scheme, for one run of one job:

* Each side draws an X25519 key and sends it in a *hello*, with its certificate and a signature
  (RSA-PSS over SHA-256, the certificate's key) over the key, the run, the job, both names and, in
  the answer, the key that it answers. The certificate must be issued by the federation's root,
  valid today, and name the party. So each knows that the other's key is of this run and fresh.
* The X25519 secret of the two drawn keys gives a key for each direction, by HKDF over SHA-256 with
  all that both have signed in its context. A *frame* is AES-256-GCM under its direction's key
  (security level: 128 bits, that of X25519). Its nonce is its number, and numbers rise by one: a
  frame that is changed, repeated, left out or overtaken does not open, and is refused. The drawn
  keys are forgotten with the run, so a certificate's key that is lost later opens nothing.

The hello is ours: a signed Diffie-Hellman with the identities inside what is signed, an idea of
Krawczyk 2003, "SIGMA", whose protocol it is not; the first hello is fresh by the job's number,
which comes once. Nobody outside has reviewed it. Frames: RFC 7748, RFC 5869, NIST SP 800-38D, by
the `cryptography` library. Who a party is rests on FLARE's RSA certificates of 2,048 bits.
What a relay still sees: who talks to whom, when, and how many bytes.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from interlace.errors import InterlaceError, Refused

_SIGNED_FOR = b"interlace hello 1\n"
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_MOST_HELLO = 2**14


class Identity:
    """Who a site is in its federation: its certificate, that certificate's key, and the root.

    Raises:
        InterlaceError: the key is not the RSA key that FLARE's provisioning makes.
    """

    def __init__(self, key: bytes, certificate: bytes, root: bytes) -> None:
        loaded = load_pem_private_key(key, password=None)
        if not isinstance(loaded, rsa.RSAPrivateKey):
            raise InterlaceError("the site's key is not an RSA key; provision the site again")
        self.key, self.certificate = loaded, certificate
        self.root = x509.load_pem_x509_certificate(root)

    @classmethod
    def of(cls, kit: Path) -> Self:
        """The identity in a site's start-up kit.

        Raises:
            InterlaceError: a file of it is missing or damaged.
        """
        try:
            names = ("client.key", "client.crt", "rootCA.pem")
            return cls(*((kit / "startup" / name).read_bytes() for name in names))
        except (OSError, ValueError) as e:
            raise InterlaceError(
                f"the start-up kit {kit} cannot be read ({e}); `interlace party install` puts it "
                "together"
            ) from e

    def sign(self, text: bytes) -> str:
        """A signature over ``text``, in hexadecimal."""
        return self.key.sign(text, _PSS, hashes.SHA256()).hex()


def check(
    name: str, certificate: bytes, signature: str, text: bytes, root: x509.Certificate
) -> None:
    """Make sure that the party ``name`` of a federation has signed ``text``.

    Args:
        name: The party.
        certificate: What is said to be its certificate, as PEM.
        signature: What is said to be its signature, in hexadecimal.
        text: What it has signed.
        root: The federation's root certificate.

    Raises:
        Refused: it has not, or its certificate is another federation's, expired, or not its.
    """
    try:
        theirs = x509.load_pem_x509_certificate(certificate)
        theirs.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise Refused(f"the certificate of '{name}' is not of this federation") from None
    if common_name(theirs) != name:
        raise Refused(f"the certificate that came for '{name}' names '{common_name(theirs)}'")
    if not theirs.not_valid_before_utc <= datetime.now(UTC) <= theirs.not_valid_after_utc:
        raise Refused(
            f"the certificate of '{name}' is not valid today; provision that party again, or "
            "set this machine's clock"
        )
    key = theirs.public_key()
    try:
        if not isinstance(key, rsa.RSAPublicKey):
            raise ValueError
        key.verify(bytes.fromhex(signature), text, _PSS, hashes.SHA256())
    except (InvalidSignature, ValueError):
        raise Refused(f"what came for '{name}' is not signed by it") from None


def common_name(certificate: x509.Certificate) -> str:
    """Whom a certificate is about; nobody, if it names several."""
    found = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


class Meeting(NamedTuple):
    """Which run of which job two parties meet for."""

    run: str
    job: str


class Line:
    """One party's end of a sealed line.

    Args:
        me, peer: The parties' names.
        meeting: What for.
        identity: This party's.
    """

    def __init__(self, me: str, peer: str, meeting: Meeting, identity: Identity) -> None:
        self.me, self.peer, self.meeting, self.identity = me, peer, meeting, identity
        self._key = X25519PrivateKey.generate()
        self._ciphers: dict[str, AESGCM] = {}  # by who sends

    def hello(self, answers: str = "") -> bytes:
        """This end's key, signed; ``answers`` is the key in the hello that it answers."""
        about = {
            **self.meeting._asdict(),
            "from": self.me,
            "to": self.peer,
            "key": self.key,
            "answers": answers,
        }
        certificate = self.identity.certificate.decode("ascii")
        signature = self.identity.sign(_canonical(about))
        return json.dumps({**about, "certificate": certificate, "signature": signature}).encode()

    @property
    def key(self) -> str:
        """This end's public key, in hexadecimal."""
        return self._key.public_key().public_bytes_raw().hex()

    def meet(self, hello: bytes, answers: str = "") -> str:
        """Take the other end's hello, which must answer ``answers``; gives its key.

        Raises:
            Refused: it is not the peer's, of this run, or signed.
        """
        try:
            if len(hello) > _MOST_HELLO:
                raise ValueError
            told = json.loads(hello)
            key, certificate, signature = (told.pop(n) for n in ("key", "certificate", "signature"))
            theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(key))
            due = {**self.meeting._asdict(), "from": self.peer, "to": self.me, "answers": answers}
            if told != due:
                raise Refused(f"the hello of '{self.peer}' is for another run, job or party")
            signed = _canonical({**due, "key": key})
            check(self.peer, str(certificate).encode(), str(signature), signed, self.identity.root)
            secret = self._key.exchange(theirs)  # refuses keys of small order
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refused(f"what came from '{self.peer}' is not a hello") from None
        keys = sorted([self.key, key])
        for sender in (self.me, self.peer):
            about = {**self.meeting._asdict(), "keys": keys, "sender": sender}
            derived = HKDF(hashes.SHA256(), 32, salt=None, info=_canonical(about)).derive(secret)
            self._ciphers[sender] = AESGCM(derived)
        return str(key)

    def seal(self, number: int, text: bytes) -> bytes:
        """This end's frame of this number that says ``text``."""
        return self._cipher(self.me).encrypt(_nonce(number), text, None)

    def open(self, number: int, sealed: bytes) -> bytes:
        """What the other end's frame of this number says.

        Raises:
            Refused: it is not the other end's frame of this number.
        """
        try:
            return self._cipher(self.peer).decrypt(_nonce(number), sealed, None)
        except InvalidTag:
            raise Refused(
                f"a frame from '{self.peer}' was changed, repeated, out of order, or not its own"
            ) from None

    def _cipher(self, sender: str) -> AESGCM:
        if sender not in self._ciphers:
            raise Refused(f"'{self.peer}' has not said hello")
        return self._ciphers[sender]


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _canonical(about: dict[str, Any]) -> bytes:
    return _SIGNED_FOR + json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
