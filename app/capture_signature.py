"""Signatures of capture files: Ed25519 over the digest in the file's tail.

Keys are files as OpenSSL makes them (`openssl genpkey -algorithm ed25519`, PEM). A signed
capture carries the public key, so damage is seen by anybody; who signed is only known by
comparing that key with one from elsewhere.

    signature = "ed25519\\0" | public key (32) | signature (64)

The one door to `cryptography`, which comes with the extra `sign`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from blake3 import blake3

from projections.events.ports import LogError

MAGIC = b"ed25519\0"
PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
KEY_FILE_BYTES_MAX = 64 << 10
_CONTEXT = b"picklog capture 1\0"


class SignatureRefused(LogError):
    """A key that cannot be used, or a signature that does not hold; says which and what to do."""


class Signed(NamedTuple):
    """A signature that holds. fingerprint: blake3 of the public key, 16 bytes in hex."""

    public: bytes
    fingerprint: str


def signer(path: Path) -> Callable[[bytes], bytes]:
    """A function that signs a digest with the private key in a file. Raises SignatureRefused, OSError."""
    ed25519, serialization = _library()
    try:
        key: Any = serialization.load_pem_private_key(_key_bytes(path), password=None)
    except (ValueError, TypeError) as problem:
        raise SignatureRefused(f"{path}: no private key in PEM without a password: {problem}") from problem
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SignatureRefused(f"{path}: no Ed25519 key: make one with openssl genpkey -algorithm ed25519")
    public: bytes = key.public_key().public_bytes_raw()
    return lambda digest: MAGIC + public + bytes(key.sign(_CONTEXT + digest))


def checked_signature(digest: bytes, signature: bytes) -> Signed:
    """The signer of a digest. Raises SignatureRefused where the signature does not hold."""
    if not signature.startswith(MAGIC) or len(signature) != len(MAGIC) + PUBLIC_BYTES + SIGNATURE_BYTES:
        raise SignatureRefused("the signature is of a kind that this release does not know: update picklog")
    ed25519, _ = _library()
    public = signature[len(MAGIC) : len(MAGIC) + PUBLIC_BYTES]
    from_library = ed25519.Ed25519PublicKey.from_public_bytes(public)
    try:
        from_library.verify(signature[len(MAGIC) + PUBLIC_BYTES :], _CONTEXT + digest)
    except Exception as problem:  # InvalidSignature, whose module is not worth an import of its own
        raise SignatureRefused("the signature does not hold: the file was changed after it was signed") from (
            problem
        )
    return Signed(public, fingerprint(public))


def public_key(path: Path) -> bytes:
    """The raw public key in a file, also of a private one. Raises SignatureRefused, OSError."""
    _, serialization = _library()
    data = _key_bytes(path)
    try:
        key: Any = (
            serialization.load_pem_private_key(data, password=None).public_key()
            if b"PRIVATE" in data
            else serialization.load_pem_public_key(data)
        )
        raw: bytes = key.public_bytes_raw()
    except (ValueError, TypeError, AttributeError) as problem:
        raise SignatureRefused(f"{path}: no Ed25519 key in PEM: {problem}") from problem
    return raw


def fingerprint(public: bytes) -> str:
    """What people compare keys by."""
    return blake3(public).hexdigest(length=16)


def _key_bytes(path: Path) -> bytes:
    if path.stat().st_size > KEY_FILE_BYTES_MAX:
        raise SignatureRefused(f"{path}: too large for a key")
    return path.read_bytes()


def _library() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise SignatureRefused("signatures need the extra `sign`: pip install 'picklog[sign]'") from None
    return ed25519, serialization
