import json
import random

import pytest

from evaluation.base_models import bits_per_byte

WORDS = "the old new red blue pan film book works fails well badly and but it was".split()


def texts(rng, many):
    return [" ".join(rng.choice(WORDS) for _ in range(30)) + "." for _ in range(many)]


def test_baselines_are_measured_beside_the_models(tiny_base, tiny_llama):
    rng = random.Random(0)
    known, heldout = texts(rng, 300), texts(rng, 10)
    names = [str(tiny_base), str(tiny_llama)]
    rows = list(bits_per_byte.measure(names, known, heldout, context=64))
    assert [row.name for row in rows] == [*names, "untrained", "5-gram, Kneser-Ney"]
    gpt2, llama, untrained, ngrams = rows
    assert gpt2.bits == pytest.approx(untrained.bits, rel=0.1)  # the tiny base is random too
    assert ngrams.bits < 0.6 * min(gpt2.bits, llama.bits)  # it has read text of these words
    assert gpt2.parameters == untrained.parameters and ngrams.parameters is None


def test_the_command_writes_a_table(tiny_base, tmp_path, monkeypatch):
    rows = [json.dumps({"text": text}) for text in texts(random.Random(0), 300)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr("sys.argv", ["x", "--context", "64"])
    bits_per_byte.compare(
        [str(tiny_base)], [tmp_path / "corpus.jsonl"], tmp_path / "bits.md", context=64
    )
    table = (tmp_path / "bits.md").read_text()
    assert (
        "5-gram, Kneser-Ney" in table and "python -m evaluation.base_models.bits_per_byte" in table
    )
    assert len(json.loads((tmp_path / "bits.json").read_text())["rows"]) == 3
