"""Signatures of `privacy.json`: who vouches for a twin.

`privacy.json` has the hashes of twin, card, page and model, so one signature covers them all. It is
an Ed25519 signature in the format of OpenSSH (SSHSIG, file PROTOCOL.sshsig of its sources). So a
key that people have already will do, and they can check it without twinset:

    ssh-keygen -Y check-novalidate -n twinset -s privacy.json.sig < privacy.json
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import shlex
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from twinset.errors import InputError, VerificationError
from twinset.files.atomic import write_text
from twinset.files.limits import SMALL, read_text

SIGNATURE = ".sig"  # after the name of the signed file, as ssh-keygen does it
KIND, NAMESPACE, HASH = b"ssh-ed25519", b"twinset", b"sha512"
MAGIC, VERSION = b"SSHSIG", (1).to_bytes(4, "big")
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"


def signature_of(signed: Path) -> Path:
    """Return where the signature of a file is.

    >>> signature_of(Path("share/privacy.json")).name
    'privacy.json.sig'
    """
    return signed.with_name(signed.name + SIGNATURE)


def sign(signed: Path, key: Path) -> str:
    """Write the signature of a file next to it, and return the fingerprint of the key.

    Args:
        signed: the `privacy.json` of a share.
        key: a private Ed25519 key of OpenSSH, without a passphrase.

    Raises:
        InputError: the key cannot be used.
    """
    try:
        private = load_ssh_private_key(read_text(key, SMALL).encode(), None)
    except OSError:
        raise InputError(f"{key}: cannot be read. Name a private key of OpenSSH.") from None
    except TypeError:  # it has a passphrase
        asked = shlex.join(
            ["ssh-keygen", "-Y", "sign", "-n", "twinset", "-f", f"{key}", f"{signed}"]
        )
        raise InputError(f"{key}: has a passphrase. Sign with OpenSSH: {asked}") from None
    except (ValueError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        made = "`ssh-keygen -t ed25519` makes one."
        raise InputError(f"{key}: is no private Ed25519 key of OpenSSH. {made}")
    public = _public_bytes(private.public_key())
    parts = [public, NAMESPACE, b"", HASH, _packed(KIND, private.sign(_message(signed)))]
    blob = base64.b64encode(MAGIC + VERSION + _packed(*parts)).decode()
    lines = [blob[start : start + 70] for start in range(0, len(blob), 70)]
    write_text(signature_of(signed), "\n".join([BEGIN, *lines, END, ""]))
    return fingerprint(public)


def signer(signed: Path, expected: Path | None = None) -> str | None:
    """Return the fingerprint of the key that signed a file. None: it has no signature.

    Args:
        signed: the `privacy.json` of a share.
        expected: a file with public keys, such as `id_ed25519.pub`. One of them must have signed.

    Raises:
        InputError: `expected` is no public Ed25519 key.
        VerificationError: the signature does not hold, is missing, or is that of another key.
    """
    wanted = list[bytes]()
    if expected is not None:
        found = []
        with suppress(OSError, ValueError):
            for line in read_text(expected, SMALL).splitlines():
                with suppress(ValueError, UnsupportedAlgorithm):  # a comment, or another kind
                    found.append(load_ssh_public_key(line.encode()))
        wanted = [_public_bytes(key) for key in found if isinstance(key, Ed25519PublicKey)]
        if not wanted:
            said = "has no public Ed25519 key. Name its file, such as id_ed25519.pub."
            raise InputError(f"`key={expected}`: {said}")
    path = signature_of(signed)
    if not path.is_file():
        if wanted:
            raise VerificationError(f"{signed}: is not signed. Ask its sender for {path.name}.")
        return None
    try:
        lines = read_text(path, SMALL).split()
        body = "".join(lines[3:-3])  # the first and the last line are three words each
        blob = base64.b64decode(body, validate=True)
        if " ".join(lines[:3]) != BEGIN or " ".join(lines[-3:]) != END:
            raise ValueError
        if not blob.startswith(MAGIC + VERSION):
            raise ValueError
        public, *rest, signature = _unpacked(blob[len(MAGIC + VERSION) :], 5)
        kind, raw = _unpacked(public, 2)
        if rest != [NAMESPACE, b"", HASH] or kind != KIND:
            raise ValueError
        kind, number = _unpacked(signature, 2)
        if kind != KIND:
            raise ValueError
        Ed25519PublicKey.from_public_bytes(raw).verify(number, _message(signed))
    except InvalidSignature:
        said = f"{path}: does not hold for {signed.name}, so one of them was altered"
        raise VerificationError(said) from None
    except (OSError, ValueError, binascii.Error):
        made = f"made with the namespace {NAMESPACE.decode()!r} and sha512"
        raise VerificationError(f"{path}: is no Ed25519 signature of OpenSSH {made}") from None
    if wanted and public not in wanted:
        keys = " or ".join(map(fingerprint, wanted))
        said = f"is signed by {fingerprint(public)}, not by {keys} of {expected}"
        raise VerificationError(f"{signed}: {said}")
    return fingerprint(public)


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a public key as OpenSSH shows it."""
    digest = base64.b64encode(hashlib.sha256(public).digest()).decode()
    return f"SHA256:{digest.rstrip('=')}"


def _public_bytes(key: Ed25519PublicKey) -> bytes:
    return _packed(KIND, key.public_bytes(Encoding.Raw, PublicFormat.Raw))


def _message(signed: Path) -> bytes:
    digest = hashlib.sha512(signed.read_bytes()).digest()
    return MAGIC + _packed(NAMESPACE, b"", HASH, digest)


def _packed(*strings: bytes) -> bytes:
    """Return strings one after another, each behind its length in four bytes."""
    return b"".join(len(each).to_bytes(4, "big") + each for each in strings)


def _unpacked(packed: bytes, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        size = int.from_bytes(packed[:4], "big")
        if len(packed) < 4 + size:
            raise ValueError
        found.append(packed[4 : 4 + size])
        packed = packed[4 + size :]
    if packed:
        raise ValueError
    return found
