"""The owner hears of a small table and of a strange language; nothing else follows from either."""

from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from tests.helpers.commands import texts
from twinset.config.options import run_config
from twinset.config.plan import make_plan
from twinset.models.assets import shipped_folder
from twinset.progress import Silent
from twinset.run.prepare import prepare
from twinset.run.request import Source
from twinset.run.table_notes import size_notes, table_notes
from twinset.table.tokenization import times_english

CHINESE = [f"这部电影非常好,我会推荐给所有喜欢慢节奏故事的人{i}" for i in range(20)]
ARABIC = [f"كان الفيلم جيدا جدا وأوصي به لكل من يحب قصة بطيئة {i}" for i in range(20)]
CLINICAL = [f"Pt {i} c/o SOB x3d, hx of COPD; Rx furosemide 40mg PO BID, f/u" for i in range(20)]
FEW, HARDLY = "records are few for", "it has hardly read their language"


@pytest.fixture(scope="module")
def english():
    return AutoTokenizer.from_pretrained(shipped_folder("gpt2-mini"))


def plan(records=10_000, **options):
    return make_plan(records, run_config({"steps": 4, "batch_size": 32, **options}))


@pytest.mark.parametrize(
    ("found", "warned"),
    [(texts(), False), (CLINICAL, False), (CHINESE, True), (ARABIC, True), (["😀"] * 9, True)],
)
def test_a_language_that_the_base_hardly_reads_is_told(english, found, warned):
    assert (
        any(HARDLY in note for note in table_notes(plan(), times_english(found, english))) == warned
    )


@pytest.mark.parametrize(
    ("records", "epsilon", "warned"), [(8_749, 8.0, True), (8_750, 8.0, False), (60, None, False)]
)
def test_few_records_for_their_budget_are_told(records, epsilon, warned):
    notes = list(table_notes(plan(records, epsilon=epsilon), 1.0))
    assert any(note.startswith(f"{records} {FEW}") for note in notes) == warned


@pytest.mark.parametrize(
    ("records", "epsilon", "warned"),
    [(124, 8.0, True), (125, 8.0, False), (999, 1.0, True), (60, None, False)],
)
def test_where_a_twin_is_hardly_worth_making_is_told(records, epsilon, warned):
    notes = list(size_notes(plan(records, steps=0, epsilon=epsilon)))
    assert any("not be worth making" in note for note in notes) == warned


@pytest.mark.parametrize(("steps", "said"), [(0, "nothing is trained"), (4, "`steps=0`")])
def test_where_training_hardly_pays_it_says_what_does(steps, said):
    (note,) = table_notes(plan(1000, steps=steps, epsilon=1.0), 1.0)
    assert said in note


def test_a_run_does_not_depend_on_it(good_table, tiny_base, monkeypatch):
    config = run_config({"base_model": str(tiny_base), "steps": 4, "batch_size": 8})
    said = []
    progress = Silent()
    progress.say = said.append
    made = prepare(Source("t.csv", "review", ("label",)), config, progress=progress)
    assert any(FEW in note for note in made.notes) and set(made.notes) <= set(said)
    monkeypatch.setattr("twinset.run.prepare.table_notes", lambda *_: [])
    other = prepare(Source("t.csv", "review", ("label",)), config)
    assert replace(made, notes=(), base=other.base, records=other.records) == replace(
        other, notes=()
    )


@pytest.mark.parametrize(
    ("asked", "steps", "said"), [(2000, 4, 1), (2000, 0, 0), (1000, 4, 0), (None, 4, 0)]
)
def test_a_batch_of_more_records_than_there_are_is_said(asked, steps, said):
    notes = size_notes(plan(1000, steps=steps, batch_size=asked), asked)
    assert sum("each step has all" in note for note in notes) == said
