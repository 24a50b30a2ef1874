"""Public text from files and folders, and what is kept out of it."""

import gzip

import pandas as pd
import pytest

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
    corpus = read_corpus([folder])
    assert {"One paragraph,\nof two lines.", "Zipped.", "Review 7."} <= set(corpus.documents)
    assert len(corpus.documents) == len(corpus.keys) == len(set(corpus.documents)) == 203
    assert corpus.repeated == 4


def test_a_hash_of_the_text_alone_decides_what_is_read_and_held_out(tmp_path):
    (tmp_path / "long.txt").write_text("\n\n".join(PARAGRAPHS))
    (tmp_path / "same.txt").write_text("\n\n".join([*PARAGRAPHS[::-1], "One more."]))
    plain = read_corpus([tmp_path / "long.txt"]).split()
    again = read_corpus([tmp_path / "same.txt"], prompts=["same=P:"]).split()
    assert set(plain[1]) <= {text.removeprefix("P: ") for text in again[1]}
    assert 15 < len(plain[1]) < 90 and not set(plain[0]) & set(plain[1])


LONG = " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize(
    ("document", "is_clean"),
    [
        (f"Before, {' '.join(LONG.split()[5 : 5 + RUN]).upper()} – after.", False),
        (f"Before, {' '.join(LONG.split()[5 : 4 + RUN])} after.", True),  # one word less
        ("He said: a short and guarded note indeed!", False),
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


def test_all_text_of_guarded_files_counts(folder, tmp_path):
    table = pd.DataFrame({"n": [1, 2], "title": ["One", None], "body": ["Two", "Three"]})
    table.to_csv(tmp_path / "private.csv", index=False)
    assert list(read_guarded([tmp_path / "private.csv"])) == ["One", "Two", "Three"]
    assert "Zipped." in list(read_guarded([folder / "more.txt.gz"]))
