"""A small twin to hand over: what the tests of card, share and verify have in common."""

from pathlib import Path

import pandas as pd
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.statement.ledger import Ledger
from twinset.release.card import TwinDescription
from twinset.release.share import SharePaths, write_share
from twinset.sampling.twin_model import twin_frame
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template

TEXTS = ["=1+1 is fun", "NA", 'He said "no",\nand left.', "ünïcödé 🙂", "null", "plain"]
TRAINING = (GaussianRelease(5.0, "label counts"), SubsampledGaussian(1.1, 0.1, 50))
FULL_BATCH = (GaussianRelease(5.0, "label counts"), SubsampledGaussian(9.0, 1.0, 20))  # quick ε
NO_PRIVACY = (NonPrivateAccess("trained without noise"),)


def ledger(events: tuple[Event, ...] = FULL_BATCH, **changes) -> Ledger:
    rates = [e.sample_rate for e in events if isinstance(e, SubsampledGaussian)]
    options = {
        "delta": 1e-5,
        "target_epsilon": 8.0,
        "records": 500,
        "sample_rate": rates[0] if rates else 0.1,
        "max_grad_norm": 1.0,
        "randomness": Randomness.from_os(),
        "policy": "uniform",
    }
    opened = Ledger.open(**options | changes)
    for event in events:
        opened.record(event)
    return opened


def description(values=("fresh", "rotten"), name="sentiment", **changes) -> TwinDescription:
    attribute = Attribute(name, "str", tuple(values))
    schema = Schema("review", "str", (attribute,), ("review", name))
    template = Template("mine", f"Write a {{{name}}} review:", {}, (name,))
    return TwinDescription("smollm2-135m", template, schema, **changes)


def frame(of: TwinDescription) -> pd.DataFrame:
    first, second = of.schema.combinations
    return twin_frame(of.schema, TEXTS, [first, second, first, first, second, first])


def hand_over(
    folder: Path, spent: Ledger | None = None, format: str = "parquet", **options
) -> SharePaths:
    folder.mkdir(parents=True, exist_ok=True)
    made = description()
    return write_share(folder, frame(made), spent or ledger(), made, format, **options)


def write_key(place: Path, private=None) -> Path:
    """Write a key pair as ssh-keygen does. Return the path of the private one, of Ed25519."""
    private = private or Ed25519PrivateKey.generate()
    plain = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    place.write_bytes(plain)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    place.with_suffix(".pub").write_bytes(public + b" me@example.org\n")
    return place
