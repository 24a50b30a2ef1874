"""A finished run that is resumed hands out what it made, and trains nothing again."""

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.helpers.commands import GOOD, arguments, call, snapshot
from twinset.files.atomic import sha256_file, write_checksums
from twinset.models.base_model import WEIGHTS, ModelFiles
from twinset.release.share import statement_text
from twinset.release.verify import verify

RUN = tuple("t.csv --run r --steps 1 --epsilon 20 --teacher-share 0 --marginal-share 0".split())
AGAIN = ("generate", "--rows", "6", "--resume")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_base):
    """A finished run with a twin, and what the command printed."""
    folder = tmp_path_factory.mktemp("finished") / "here"
    shutil.copytree(tiny_base, folder / "base")
    with chdir(folder):
        GOOD.to_csv("t.csv", index=False)
        return folder, run("generate", "--rows", "6").out


@pytest.fixture
def printed(finished, tmp_path, monkeypatch) -> str:
    """Go into a copy of its folder; return what its command printed."""
    folder, out = finished
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "here"))
    return out.replace(str(folder.resolve()), str(Path.cwd()))


def ledger_of(run: str) -> list[str]:
    return json.loads(Path(run, "share/privacy.json").read_text())["ledger"]["public_inputs"]


def run(name, *more):
    _, *given = arguments("base", (*RUN, *more))
    return call(name, *given)


def test_there_is_nothing_to_resume_and_its_twin_is_handed_out(printed):
    before = snapshot(Path())
    again = run(*AGAIN)
    assert (again.code, again.out, snapshot(Path())) == (0, printed, before)
    made = run("generate", "--resume", "--output", "out.csv", "--rows", "9")
    assert made.code == 0
    assert Path("out.csv").read_bytes() == Path("r/share/twin.csv").read_bytes()
    Path("out.privacy.json").unlink()
    assert run(*AGAIN, "--output", "out.csv").code == 0  # the rest is there already
    assert verify(Path("out.csv")).rows == 6


def test_a_base_model_that_was_exchanged_is_not_the_ledgers(printed, monkeypatch):
    """Its name and origin may stay the same, as those of a model in the cache do."""
    (stated,) = [line for line in ledger_of("r") if "whose weights have" in line]
    known = ModelFiles.of(Path("base"), "base").digest()
    monkeypatch.setattr(ModelFiles, "digest", lambda files: known)
    assert run(*AGAIN).code == 0
    model = AutoModelForCausalLM.from_pretrained("base")
    model.save_pretrained("base", max_shard_size="60KB")  # the same numbers in other files
    Path("base", WEIGHTS).unlink()
    assert run(*AGAIN).code == 0
    model.get_input_embeddings().weight.data[5, 5] += 1e-3
    model.save_pretrained("base", max_shard_size="60KB")
    refused = run(*AGAIN)
    assert refused.code == 2 and "was made with other settings (weights)" in refused.err
    assert run("generate", "--rows", "6", "--overwrite").code == 0
    (other,) = [line for line in ledger_of("r") if "whose weights have" in line]
    assert other != stated and other.partition(", whose")[0] == stated.partition(", whose")[0]


def test_a_model_of_another_ledger_is_not_the_runs(printed):
    assert "ok: model: the files whose hashes" in call("verify", "r").out
    ledger = Path("r/model/ledger.json")
    ledger.write_text(ledger.read_text().replace("weights have", "weights had"))
    refused = call("verify", "r")
    assert refused.code == 1 and "model: is damaged: model/ledger.json" in refused.err
    write_checksums(Path("r/model"))
    state(sha256_file(Path("r/model/checksums.json")))
    assert "is not the ledger of privacy.json" in call("verify", "r").err


def state(digest: str | None) -> None:
    """Have `privacy.json` state another model, or none."""
    path = Path("r/share/privacy.json")
    data = json.loads(path.read_text("utf-8"))
    data["files"]["model"]["sha256"] = digest
    if digest is None:
        del data["files"]["model"]
    path.write_text(statement_text(data), "utf-8")


def exchange(name: str) -> None:
    """Change or remove a file of the model, and mend its checksums."""
    path = Path("r/model", name)
    path.unlink() if name == "ledger.json" else path.write_bytes(path.read_bytes() + b" ")
    write_checksums(path.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: exchange(WEIGHTS), "checksums.json: was altered"),
        (lambda: exchange("twinset.json"), "checksums.json: was altered"),
        (lambda: exchange("ledger.json"), "checksums.json: was altered"),
        (lambda: Path("r/model/token_tilt.safetensors").touch(), "holds files that its checksums"),
        (lambda: state(None), "privacy.json states no model"),
    ],
    ids=["weights", "description", "ledger", "one more", "not stated"],
)
def test_an_exchanged_model_is_noticed(printed, change, said):
    Path("r/model/.DS_Store").touch()
    assert call("verify", "r").code == 0
    change()
    refused = call("verify", "r")
    assert refused.code == 1 and said in refused.err and refused.err.count("\n") == 1
    shutil.rmtree("r/model")
    assert call("verify", "r").code == 0


@pytest.mark.parametrize("listed", ["../secret", "/secret", "link", "list", "number"])
def test_checksums_of_others_lead_to_no_other_folder(printed, listed):
    """Else `verify` would tell whether a file is there, and what is in it."""
    path, secret = Path("r/model/checksums.json"), Path("r/secret")
    secret.write_text("yes")
    hashes, name = json.loads(path.read_text()), listed
    if listed == "/secret":
        name = str(secret.absolute())
    Path("r/model/link").symlink_to("../secret")
    hashes[name] = 0 if listed == "number" else sha256_file(secret)
    path.write_text(json.dumps([*hashes.items()] if listed == "list" else hashes))
    refused = call("verify", "r")
    said = "model/link is missing, or a link" if listed == "link" else "checksums.json is missing"
    assert refused.code == 1 and said in refused.err and refused.err.count("\n") == 1


def test_a_finished_run_with_other_options_is_refused(printed):
    """Another table's twin, or one of more ε, is not handed out as this one's."""
    refused = run(*AGAIN, "--epsilon", "6", "--output", "out.csv")
    assert refused.code == 2 and "was made with other settings (privacy" in refused.err
    Path("t.csv").write_text(Path("t.csv").read_text().replace("number 7", "number 8"))
    refused = run(*AGAIN, "--output", "out.csv")
    assert refused.code == 2 and "was made with other settings (table" in refused.err
    assert not Path("out.csv").exists()
