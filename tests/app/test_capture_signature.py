"""A signature says that nothing was changed, and by whose key."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import app.capture_signature
from app.capture_signature import SignatureRefused, checked_signature, fingerprint, public_key, signer
from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_USAGE
from tests.app.log_on_disk import some_picks, written

Captured = pytest.CaptureFixture[str]
PEM = serialization.Encoding.PEM


def key_file(path: Path, curve: bool = False) -> Path:
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey = (
        ec.generate_private_key(ec.SECP256R1()) if curve else ed25519.Ed25519PrivateKey.generate()
    )
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def test_it_holds_for_the_digest_that_was_signed_and_no_other(tmp_path: Path) -> None:
    sign = signer(key_file(tmp_path / "a.pem"))
    signature = sign(b"d" * 32)
    found = checked_signature(b"d" * 32, signature)
    assert found.public == public_key(tmp_path / "a.pem") == public_key(tmp_path / "a.pub")
    assert found.fingerprint == fingerprint(found.public)
    with pytest.raises(SignatureRefused, match="does not hold"):
        checked_signature(b"e" * 32, signature)
    with pytest.raises(SignatureRefused, match="does not hold"):
        checked_signature(b"d" * 32, signature[:-1] + bytes((signature[-1] ^ 1,)))


def test_signatures_of_another_kind_are_refused() -> None:
    with pytest.raises(SignatureRefused, match="update picklog"):
        checked_signature(b"d" * 32, b"minisign" + bytes(96))


def test_files_that_hold_no_such_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    for path in (tmp_path / "text", key_file(tmp_path / "curve.pem", curve=True)):
        with pytest.raises(SignatureRefused):
            signer(path)
        with pytest.raises(SignatureRefused):
            public_key(path)
    (tmp_path / "huge").write_bytes(bytes(70_000))
    with pytest.raises(SignatureRefused, match="too large"):
        signer(tmp_path / "huge")


def test_without_the_library_signing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise SignatureRefused("signatures need the extra `sign`")

    monkeypatch.setattr(app.capture_signature, "_library", missing)
    with pytest.raises(SignatureRefused, match="extra `sign`"):
        signer(key_file(tmp_path / "a.pem"))


def test_a_signed_capture_is_shown_with_its_key_and_compared_with_one_that_is_named(
    tmp_path: Path, capsys: Captured
) -> None:
    data = written(some_picks(), tmp_path / "data")
    key, other = key_file(tmp_path / "a.pem"), key_file(tmp_path / "b.pem")
    path = str(tmp_path / "a.capture")
    assert run(["capture", "export", "--log", str(data), "--out", path, "--sign", str(key)]) == EXIT_DONE
    capsys.readouterr()
    show = ["capture", "show", path]
    assert run(show) == EXIT_DONE
    assert f"signature: holds, by key {fingerprint(public_key(key))}" in capsys.readouterr().out
    assert run([*show, "--signed-by", str(key.with_suffix(".pub"))]) == EXIT_DONE
    capsys.readouterr()
    assert run([*show, "--signed-by", str(other)]) == EXIT_FOUND_WRONG
    assert "is signed by key" in capsys.readouterr().err
    assert run([*show, "--signed-by", str(tmp_path / "a.capture")]) == EXIT_USAGE
    unsigned = str(tmp_path / "c.capture")
    run(["capture", "export", "--log", str(data), "--out", unsigned])
    assert run(["capture", "show", unsigned, "--signed-by", str(key)]) == EXIT_FOUND_WRONG
    assert "is not signed" in capsys.readouterr().err
