"""Public text from files and folders, and what is kept out of it."""

import gzip

import pandas as pd
import pytest

from twinset.pretraining.corpus import RUN, find_clean, read_corpus

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
    corpus = read_corpus([folder])
    assert {"One paragraph,\nof two lines.", "Zipped.", "Review 7."} <= set(corpus.documents)
    assert len(corpus.documents) == len(corpus.keys) == len(set(corpus.documents)) == 203
    assert corpus.repeated == 4


def test_only_a_hash_of_the_text_decides_whether_it_is_read_or_held_out(tmp_path):
    (tmp_path / "long.txt").write_text("\n\n".join(PARAGRAPHS))
    (tmp_path / "same.txt").write_text("\n\n".join([*PARAGRAPHS[::-1], "One more."]))
    plain = read_corpus([tmp_path / "long.txt"]).split()
    again = read_corpus([tmp_path / "same.txt"], prompts=["same=P:"]).split()
    assert set(plain[1]) <= {text.removeprefix("P: ") for text in again[1]}
    assert 15 < len(plain[1]) < 90 and not set(plain[0]) & set(plain[1])


LONG = " ".join(f"word{n}" for n in range(40))
LINES = [" ".join(f"verse{n}word{w}" for w in range(9)) for n in range(2)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A table with text in two columns, and a zipped text."""
    place = tmp_path_factory.mktemp("guarded")
    bodies = ["\n\n".join(LINES), "A short and guarded note indeed."]
    table = pd.DataFrame({"n": [1, 2], "title": [None, "All right"], "body": bodies})
    table.to_csv(place / "private.csv", index=False)
    with gzip.open(place / "more.txt.gz", "wt") as file:
        file.write(f"Another.\n\n{LONG}")
    return [place / "private.csv", place / "more.txt.gz"]


@pytest.mark.parametrize(
    ("document", "is_clean"),
    [
        (f"Before, {' '.join(LONG.split()[5 : 5 + RUN]).upper()} – after.", False),
        (f"Before, {' '.join(LONG.split()[5 : 4 + RUN])} after.", True),  # one word less
        ("He said: a short and guarded note indeed!", False),
        ("All right.", True),  # too short for anyone to own
        (LINES[1], False),  # the corpus is cut where the guarded text is not
    ],
)
def test_documents_that_hold_guarded_text_are_found(guarded, document, is_clean):
    assert find_clean([document, "Nothing of it."], guarded).tolist() == [is_clean, True]
