"""Made-up support dialogues: what is planted is where it is said to be, and nowhere else."""

import json
import re

import pytest

from evaluation.demo_tables import (
    KINDS,
    SATISFIED,
    SECRETS,
    TEXT,
    TOPIC,
    make_dialogues,
)
from twinset.detectors.patterns import Patterns
from twinset.table.records import records_from_frame


@pytest.fixture(scope="module")
def table():
    return make_dialogues(400, seed=3)


def test_the_table_is_labelled_text(table):
    assert list(table) == [TEXT, TOPIC, SATISFIED, SECRETS]
    records, _ = records_from_frame(table, TEXT, (TOPIC, SATISFIED))
    assert len(records) == 400 and len(records.schema.combinations) == 8
    assert table[TOPIC].value_counts().min() > 60 and table[SATISFIED].value_counts().min() > 150


def test_secrets_stand_once_in_their_text_and_are_all(table):
    seen = set()
    for text, cell in zip(table[TEXT], table[SECRETS], strict=True):
        secrets = json.loads(cell)
        assert {"name", "tracking_number"} < secrets.keys() and len(secrets) == 4
        seen |= secrets.keys()
        rest = text
        for value in secrets.values():
            assert text.count(value) == 1
            rest = rest.replace(value, "")
        assert not re.search(r"\d|@", rest)
    assert seen == set(KINDS)


def test_patterns_find_all_but_names(table):
    """The negative control: names have no form that a pattern could know."""
    missed = set()
    texts = table[TEXT].tolist()
    for text, spans, cell in zip(texts, Patterns().spans(texts), table[SECRETS], strict=True):
        for kind, value in json.loads(cell).items():
            at = text.index(value)
            covered = {i for start, end in spans for i in range(start, end)}
            if any(text[i].isalnum() and i not in covered for i in range(at, at + len(value))):
                missed.add(kind)
    assert missed == {"name"}


def test_numbers_and_domains_belong_to_nobody(table):
    secrets = [json.loads(cell) for cell in table[SECRETS]]
    phones = [s["phone"] for s in secrets if "phone" in s]
    assert phones and all(re.fullmatch(r"\(\d{3}\) 555-01\d\d", phone) for phone in phones)
    mails = [s["email"] for s in secrets if "email" in s]
    assert mails and all(re.search(r"@example\.(com|net|org)$", mail) for mail in mails)


def test_the_seed_decides_all():
    few, many, other = (make_dialogues(n, s) for n, s in ((20, 1), (40, 1), (20, 2)))
    assert few.equals(many.head(20)) and few.equals(make_dialogues(20, 1))
    assert not set(few[TEXT]) & set(other[TEXT])
    with pytest.raises(ValueError, match="no rows"):
        make_dialogues(0)
