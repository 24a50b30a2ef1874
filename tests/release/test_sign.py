"""Signatures: who vouches for a twin, for readers with twinset and with OpenSSH alone."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from tests.helpers.commands import call
from tests.helpers.handover import hand_over, write_key
from twinset.errors import InputError, VerificationError
from twinset.release.publish import publish
from twinset.release.sign import sign, signature_of
from twinset.release.verify import verify

OPENSSH = shutil.which("ssh-keygen")


@pytest.fixture
def shared(tmp_path):
    return hand_over(tmp_path / "r" / "share")


@pytest.fixture
def key(tmp_path):
    return write_key(tmp_path / "id")


def test_a_signed_twin_says_whose_it_is(shared, key):
    before = verify(shared.twin)
    assert before.signed_by is None and "not signed" in before.cannot_show[0]
    by = sign(shared.privacy, key)
    unknown, known = verify(shared.twin), verify(shared.twin, key.with_suffix(".pub"))
    assert unknown.signed_by == known.signed_by == by
    assert by in unknown.cannot_show[0]  # anyone can make a key
    assert len(known.cannot_show) == len(before.cannot_show) - 1


@pytest.mark.skipif(OPENSSH is None, reason="OpenSSH is not installed")
def test_openssh_and_twinset_check_each_others_signatures(shared, key):
    by, asked = sign(shared.privacy, key), [OPENSSH, "-Y"]
    place = signature_of(shared.privacy)
    check = [*asked, "check-novalidate", "-n", "twinset", "-s", place]
    with shared.privacy.open("rb") as text:
        said = subprocess.run(check, stdin=text, capture_output=True, text=True, check=True)
    assert by in said.stdout
    ours = place.read_text()
    place.unlink()
    key.chmod(0o600)
    command = [*asked, "sign", "-n", "twinset", "-f", key, shared.privacy]
    subprocess.run(command, capture_output=True, check=True)
    assert place.read_text() == ours
    assert verify(shared.twin, key.with_suffix(".pub")).signed_by == by


def test_openssh_signs_for_another_purpose_in_vain(shared, key):
    """A signature that the key's owner made of the same bytes, but not as a twin's."""
    sign(shared.privacy, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinset.release.sign.NAMESPACE", b"git")
        sign(shared.privacy, key)
    with pytest.raises(VerificationError, match="namespace 'twinset'"):
        verify(shared.twin)


def flip(path: Path) -> None:
    """Change one bit of the signature itself, and leave its form."""
    begin, *lines, end = path.read_text().splitlines()
    lines[-1] = lines[-1][:-6] + ("A" if lines[-1][-6] != "A" else "B") + lines[-1][-5:]
    path.write_text("\n".join([begin, *lines, end, ""]))


SPOILED = {
    "the statement": (lambda s: s.with_suffix(".json").write_bytes(b" " + s.read_bytes()), "hold"),
    "a bit of the signature": (lambda s: flip(signature_of(s)), "hold"),
    "cut off": (lambda s: signature_of(s).write_text("-----BEGIN SSH"), "no Ed25519 signature"),
    "no text": (lambda s: signature_of(s).write_bytes(b"\xff" * 9), "no Ed25519 signature"),
    "gone": (lambda s: signature_of(s).unlink(), "not signed"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_was_altered_is_not_signed(shared, key, what):
    sign(shared.privacy, key)
    spoil, said = SPOILED[what]
    spoil(shared.privacy)
    with pytest.raises(VerificationError, match=said):
        verify(shared.twin, key.with_suffix(".pub"))


def test_one_of_several_public_keys_must_have_signed(shared, key, tmp_path):
    sign(shared.privacy, key)
    other = write_key(tmp_path / "other").with_suffix(".pub").read_text()
    several = tmp_path / "NAME.keys"
    several.write_text(f"# of GitHub\nssh-rsa AAAA\n{other}{key.with_suffix('.pub').read_text()}")
    assert verify(shared.twin, several).signed_by


def test_another_key_is_not_the_one_named(shared, key, tmp_path):
    sign(shared.privacy, write_key(tmp_path / "other"))
    with pytest.raises(VerificationError, match="is signed by SHA256:.*, not by SHA256:"):
        verify(shared.twin, key.with_suffix(".pub"))


def test_keys_that_cannot_sign_are_refused(shared, tmp_path):
    rsa = write_key(tmp_path / "rsa", generate_private_key(65537, 2048))
    for bad, said in (
        (rsa, "is no private Ed25519 key"),
        (rsa.with_suffix(".pub"), "is no private Ed25519 key"),
        (tmp_path / "missing", "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            sign(shared.privacy, bad)
        with pytest.raises(InputError, match="has no public Ed25519 key"):
            verify(shared.twin, bad)
    assert not signature_of(shared.privacy).exists()


@pytest.mark.skipif(OPENSSH is None, reason="OpenSSH is not installed")
def test_a_key_with_a_passphrase_is_for_openssh(shared, tmp_path):
    locked = tmp_path / "locked"
    made = [OPENSSH, "-q", "-t", "ed25519", "-N", "secret", "-f", locked]
    subprocess.run(made, capture_output=True, check=True)
    with pytest.raises(InputError, match="has a passphrase. Sign with OpenSSH: ssh-keygen -Y sign"):
        sign(shared.privacy, locked)


def test_a_signature_is_published_with_its_twin_and_goes_with_it(shared, key, tmp_path):
    output, public = tmp_path / "twin.parquet", key.with_suffix(".pub")
    shared.twin.with_name("twin.parquet.bak").write_text("of an editor")
    assert call("share", tmp_path / "r", "--output", output).code == 0
    found = call("share", tmp_path / "r", "--sign", key, "--output", output)
    assert found.code == 0 and "signed by SHA256:" in found.out, found.err
    assert call("verify", output, "--key", public).code == 0
    other = hand_over(tmp_path / "again" / "share")
    publish(other.twin.parent, output, overwrite=True)
    assert verify(output).signed_by is None


def test_a_twin_that_does_not_hold_is_not_signed(shared, key, tmp_path):
    shared.card.write_text("ε = 0.01\n")
    found = call("share", tmp_path / "r", "--sign", key)
    assert found.code == 1 and not signature_of(shared.privacy).exists()
    found = call("share", tmp_path / "r", "--sign", key, "--output", tmp_path / "twin.csv")
    assert found.code == 1
