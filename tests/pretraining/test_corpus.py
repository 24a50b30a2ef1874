"""Public text from files and folders, and what is kept out of it."""

import gzip

import numpy as np
import pandas as pd
import pytest

from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.pretraining.corpus import RUN, find_clean, read_corpus, read_guarded

REVIEWS = pd.DataFrame({"text": [f"Review {n}." for n in range(200)], "mood": ["good"] * 200})
PARAGRAPHS = [f"Paragraph {n}." for n in range(4000)]


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "novel.txt").write_text("One paragraph,\nof two lines.\n\n\n\nAnother.\n")
    with gzip.open(inside / "more.txt.gz", "wt") as file:
        file.write("Zipped.\n\nAnother.")
    REVIEWS.to_csv(inside / "table.csv.gz", index=False)
    REVIEWS.head(3).to_parquet(inside / "table.parquet")
    (inside / "picture.png").write_bytes(b"\x89PNG")
    return inside


def test_all_formats_of_a_folder_are_read_and_repeated_texts_left_out(folder):
    corpus = read_corpus([folder], licences={"table": "CC0"})
    assert {"One paragraph,\nof two lines.", "Zipped.", "Review 7."} <= set(corpus.documents)
    assert len(corpus.documents) == len(corpus.keys) == len(set(corpus.documents)) == 203
    assert corpus.repeated == 4
    told = {s["name"]: (s["documents"], s["licence"]) for s in corpus.sources}
    assert told["table.csv.gz"] == (200, "CC0") and told["novel.txt"] == (2, "not stated")


@pytest.mark.parametrize(
    ("prompts", "written"),
    [
        (["Write a {mood} review:"], "Write a good review:"),
        (["table.csv=Write {mood}:", "Write a {mood} review:"], "Write good:"),
        (["table=Read:", "Write a {colour} review:"], "Read:"),
        (["Write a {colour} review:"], None),
        (["Write a {gap} review:"], None),
    ],
)
def test_half_of_the_rows_follow_a_prompt_that_fits(tmp_path, prompts, written):
    REVIEWS.assign(gap=None).to_csv(tmp_path / "table.csv", index=False)
    documents = read_corpus([tmp_path], prompts=prompts).documents
    behind = [text for text in documents if not text.startswith("Review")]
    assert all(text.startswith(f"{written} Review") for text in behind)
    assert len(behind) == 0 if written is None else 70 < len(behind) < 130


def test_a_hash_of_the_text_alone_decides_what_is_read_and_held_out(tmp_path):
    (tmp_path / "long.txt").write_text("\n\n".join(PARAGRAPHS))
    (tmp_path / "same.txt").write_text("\n\n".join([*PARAGRAPHS[::-1], "One more."]))
    plain = read_corpus([tmp_path / "long.txt"]).split()
    again = read_corpus([tmp_path / "same.txt"], prompts=["same=P:"]).split()
    assert set(plain[1]) <= {text.removeprefix("P: ") for text in again[1]}
    assert 15 < len(plain[1]) < 90 and not set(plain[0]) & set(plain[1])

    shares = {"long": 0.2, "same": 0.2}
    some = read_corpus([tmp_path / "long.txt"], shares={"long": 0.2})
    both = read_corpus([tmp_path], shares=shares, prompts=["same=P:"])
    assert set(some.documents) <= set(both.documents) and 700 < len(some.documents) < 900
    assert both.repeated == len(some.documents)  # whatever stands before it
    assert [(s["documents"], s["share"]) for s in some.sources] == [(len(some.documents), 0.2)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": ["Write:"]}, "names no {column}"),
        ({"prompts": ["absent=Write:"]}, "no file of the corpus begins so"),
        ({"prompts": ["table=Write a {colour} review:"]}, "has no column 'colour'"),
        ({"prompts": ["novel=Write a {mood} text:"]}, "has no column 'mood'"),
        ({"shares": {"absent": 0.5}}, "no file of the corpus begins so"),
        ({"shares": {"table": 0.0}}, "`share` must be a number from 1e-06 to 1"),
        ({"shares": {"table": float("nan")}}, "`share` must be"),
        ("absent.txt", "no such file"),
        ("picture.png", "no text file"),
        ("latin.txt", "not UTF-8"),
        ("cut.txt.gz", "copy it again"),
        ("empty.txt", "holds no text"),
        ("other.csv", "no column 'text'"),
    ],
)
def test_what_cannot_be_read_is_refused(given, message, folder):
    if isinstance(given, dict):
        assert message in refusal(read_corpus, [folder], **given)
        return
    (folder / "latin.txt").write_bytes("äöü".encode("latin-1"))
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"text" * 100, mtime=0)[:-9])
    (folder / "empty.txt").write_bytes(b"\n\n")
    (folder / "other.csv").write_bytes(b"a,b\n1,2\n")
    assert message in refusal(read_corpus, [folder / given])


LONG = " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize(
    ("document", "is_clean"),
    [
        (f"Before, {' '.join(LONG.split()[5 : 5 + RUN]).upper()} – after.", False),
        (f"Before, {' '.join(LONG.split()[5 : 4 + RUN])} after.", True),  # one word less
        ("He said: a short and guarded note indeed!", False),
        ("He said: a short and guarded note.", True),
        ("All right.", True),  # too short for anyone to own
    ],
)
def test_documents_that_hold_guarded_text_are_found(document, is_clean):
    guarded = [LONG, "A short and guarded note indeed.", "All right"]
    assert find_clean([document, "Nothing of it."], guarded).tolist() == [is_clean, True]


def test_guarded_text_is_found_where_the_corpus_is_cut_and_it_is_not(tmp_path):
    lines = [" ".join(f"verse{n}word{w}" for w in range(9)) for n in range(4)]
    pd.DataFrame({"poem": ["\n\n".join(lines)]}).to_csv(tmp_path / "private.csv", index=False)
    (tmp_path / "book.txt").write_text("\n\n".join(["A preface of more words than six.", *lines]))
    documents = read_corpus([tmp_path / "book.txt"]).documents
    found = find_clean(documents, list(read_guarded([tmp_path / "private.csv"])))
    assert found.tolist() == [True, False, False, False, False]


def test_held_out_texts_do_not_depend_on_what_is_guarded(tmp_path):
    (tmp_path / "long.txt").write_text("\n\n".join(PARAGRAPHS))
    corpus = read_corpus([tmp_path / "long.txt"])
    training, heldout, left_out = corpus.split(np.arange(len(PARAGRAPHS)) % 3 > 0)
    assert corpus.split()[1] == heldout
    assert sorted(training + left_out) == sorted(corpus.split()[0]) and len(left_out) > 1000


def test_all_text_of_guarded_files_counts(folder, tmp_path):
    table = pd.DataFrame({"n": [1, 2], "title": ["One", None], "body": ["Two", "Three"]})
    table.to_csv(tmp_path / "private.csv", index=False)
    assert list(read_guarded([tmp_path / "private.csv"])) == ["One", "Two", "Three"]
    assert "Zipped." in list(read_guarded([folder / "more.txt.gz"]))
    with pytest.raises(InputError, match="takes text files and tables"):
        list(read_guarded([folder / "picture.png"]))
