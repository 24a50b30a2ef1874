import gzip

import pandas as pd
import pytest

from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.pretraining.corpus import RUN, find_clean, read_corpus, read_guarded

REVIEWS = pd.DataFrame({"text": [f"Review {n}." for n in range(200)], "mood": ["good"] * 200})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "novel.txt").write_text("One paragraph,\nof two lines.\n\n\n\nAnother.\n")
    with gzip.open(tmp_path / "in" / "more.txt.gz", "wt") as file:
        file.write("Zipped.\n\nAnother.")
    REVIEWS.to_csv(tmp_path / "in" / "table.csv.gz", index=False)
    REVIEWS.head(3).to_parquet(tmp_path / "in" / "table.parquet")
    (tmp_path / "in" / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path / "in"


def test_all_formats_of_a_folder_are_read_and_repeated_texts_left_out(folder):
    corpus = read_corpus([folder], licences={"table": "CC0"})
    assert len(corpus.keys) == len(corpus.documents)
    assert {"One paragraph,\nof two lines.", "Zipped.", "Review 7."} <= set(corpus.documents)
    assert len(corpus.documents) == len(set(corpus.documents)) == 203
    assert corpus.dropped == {"the same text again": 4}
    told = {s.name: (s.documents, s.licence) for s in corpus.sources}
    assert told["table.csv.gz"] == (200, "CC0") and told["novel.txt"] == (2, "not stated")
    assert all(len(s.sha256) == 64 for s in corpus.sources)


def test_half_of_labelled_rows_follow_their_prompt(folder):
    corpus = read_corpus([folder / "table.csv.gz"], prompts=["Write a {mood} review:"])
    prompted = [text for text in corpus.documents if text.startswith("Write a good review: Rev")]
    assert 70 < len(prompted) < 130
    other = read_corpus([folder / "table.csv.gz"], prompts=["Write a {colour} review:"])
    assert not any(text.startswith("Write") for text in other.documents)
    gaps = REVIEWS.assign(mood=None)
    gaps.to_csv(folder / "gaps.csv", index=False)
    none = read_corpus([folder / "gaps.csv"], prompts=["Write a {mood} review:"])
    assert not any(text.startswith("Write") for text in none.documents)


def behind(corpus, prompt):
    return sum(text.startswith(f"{prompt} ") for text in corpus.documents)


def test_a_prompt_may_be_of_some_files_and_needs_no_column(folder):
    prompts = ["table.csv=Write {mood}:", "mo=From a book:", "Write a {mood} review:"]
    (folder / "more.txt").write_text("\n\n".join(f"Paragraph {n}." for n in range(200)))
    corpus = read_corpus([folder / "table.csv.gz", folder / "more.txt"], prompts=prompts)
    assert 70 < behind(corpus, "Write good:") < 130 and behind(corpus, "Write a good review:") == 0
    assert 70 < behind(corpus, "From a book:") < 130
    told = {source.name: source.prompt for source in corpus.sources}
    assert told == {"table.csv.gz": "Write {mood}:", "more.txt": "From a book:"}


def test_a_share_of_a_file_is_read_whatever_else_is(folder):
    texts = [f"Paragraph {n}." for n in range(4000)]
    (folder / "long.txt").write_text("\n\n".join(texts))
    (folder / "same.txt").write_text("\n\n".join(texts[::-1]))
    some = read_corpus([folder / "long.txt"], shares={"long": 0.2}, prompts=["long=P:"])
    again = read_corpus([folder / "same.txt"], shares={"same": 0.2}).documents
    assert {text.removeprefix("P: ") for text in some.documents} == set(again)
    assert 700 < len(again) < 900 and 250 < behind(some, "P:") < 550
    assert [(s.documents, s.share) for s in some.sources] == [(len(again), 0.2)]
    whole, held = read_corpus([folder / "long.txt"]), some.split()[1]
    assert {text.removeprefix("P: ") for text in held} <= set(whole.split()[1])
    beside = read_corpus([folder], shares={"long": 0.2, "same": 0.2})
    assert len(beside.documents) == 203 + len(again)


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
    ],
)
def test_a_prompt_or_a_share_that_cannot_be_is_refused(given, message, folder):
    assert message in refusal(read_corpus, [folder], **given)


def test_a_text_is_the_same_with_its_prompt_and_without(tmp_path):
    frame = pd.DataFrame({"text": [f"Text {n}." for n in range(3000)], "mood": "good"})
    frame.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "again.txt").write_text("\n\n".join(frame["text"]))
    plain = read_corpus([tmp_path / "table.csv"]).split()[1]
    prompted = read_corpus([tmp_path], prompts=["A {mood} text:"])
    assert len(prompted.documents) == 3000
    held = [text.removeprefix("A good text: ") for text in prompted.split()[1]]
    assert sorted(held) == sorted(plain)


def test_what_is_held_out_depends_on_the_text_alone(tmp_path):
    texts = [f"Text {n}." for n in range(2000)]
    (tmp_path / "one.txt").write_text("\n\n".join(texts))
    (tmp_path / "two.txt").write_text("\n\n".join([*texts[::-1], "One more."]))
    train, heldout, _ = read_corpus([tmp_path / "one.txt"]).split()
    again = read_corpus([tmp_path / "two.txt"]).split()[1]
    assert set(heldout) <= set(again) and 5 < len(heldout) < 60
    assert not set(train) & set(heldout)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "no such file"),
        ("picture.png", b"\x89PNG", "no text file"),
        ("latin.txt", "äöü".encode("latin-1"), "not UTF-8"),
        ("cut.txt.gz", gzip.compress(b"text" * 100, mtime=0)[:-9], "copy it again"),
        ("empty.txt", b"\n\n", "holds no text"),
        ("table.csv", b"a,b\n1,2\n", "no column 'text'"),
    ],
)
def test_what_cannot_be_read_is_refused(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert message in refusal(read_corpus, [tmp_path / name])


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


def test_all_text_of_guarded_files_counts(folder, tmp_path):
    table = pd.DataFrame({"n": [1, 2], "title": ["One", None], "body": ["Two", "Three"]})
    table.to_csv(tmp_path / "private.csv", index=False)
    assert list(read_guarded([tmp_path / "private.csv"])) == ["One", "Two", "Three"]
    assert "Zipped." in list(read_guarded([folder / "more.txt.gz"]))
    with pytest.raises(InputError, match="takes text files and tables"):
        list(read_guarded([folder / "picture.png"]))
