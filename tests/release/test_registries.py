"""Descriptions in the formats of others say what the ledger says, and fit their specifications."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, description, frame, hand_over, ledger
from tests.helpers.refusals import refusal
from twinset.errors import VerificationError
from twinset.files.atomic import sha256_file
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import guarantee
from twinset.release.registries import CROISSANT, DEPLOYMENT, TO_FILL_IN, UNDATED, describe_data_set
from twinset.release.share import PAGE, write_share
from twinset.release.verify import verify
from twinset.table.kinds import TEXT, Column
from twinset.table.schema import Schema

HOSTILE = "'x' <script>\n---\nstatus: Approved $y$ {{ z }}"
# Of the specification of responsible-AI fields, version 1.0.
RESPONSIBLE = {
    "rai:dataCollection",
    "rai:dataCollectionType",
    "rai:dataCollectionRawData",
    "rai:dataPreprocessingProtocol",
    "rai:dataAnnotationProtocol",
    "rai:personalSensitiveInformation",
    "rai:dataBiases",
    "rai:dataUseCases",
    "rai:dataLimitations",
    "rai:dataReleaseMaintenancePlan",
}
# Of the registry's schema: what it needs, and the words that it knows.
NEEDED = {
    "name",
    "data_curators",
    "description",
    "intended_use",
    "data_product_type",
    "data_product_region",
    "publication_date",
}
KNOWN = {
    ("basic", "data_product_type"): {"Synthetic data"},
    ("dp_variant", "variant_name"): {"Approximate DP", "Custom"},
    ("deployment_model", "model_name"): {"Central"},
    ("deployment_model", "release_type"): {"One release", "Many releases"},
    ("deployment_model", "data_source_type"): {"Static", "Dynamic"},
    ("deployment_model", "access_type"): {"Interactive", "Non-interactive"},
}
FLAGGED = ledger((MaskedAccess("patterns"), *FULL_BATCH), policy="selective")


def described(folder, spent=None, **names):
    """Write a share of hostile names and of columns of each type. Return both files' content."""
    made = description(**names)
    cells = {"age": range(6), "share": [0.5] * 6, "yes": [True] * 6, "day": pd.Timestamp(0)}
    twin = frame(made).assign(**cells)
    columns = tuple(Column(name, TEXT) for name in cells)
    schema = replace(made.schema, columns=tuple(twin))
    made = replace(made, schema=schema, columns=columns)
    folder.mkdir(exist_ok=True)
    write_share(folder, twin, spent or ledger(), made, "csv")
    draft = folder / DEPLOYMENT
    return (
        json.loads((folder / CROISSANT).read_text("utf-8")),
        yaml.safe_load(draft.read_text("utf-8")) if draft.is_file() else None,
    )


def test_croissant_names_the_file_its_hash_and_the_type_of_each_column(tmp_path):
    found, _ = described(tmp_path, name="=a b/c", title=HOSTILE, licence="cc-by-4.0")
    (file,) = found["distribution"]
    assert file["sha256"] == sha256_file(tmp_path / file["contentUrl"])
    assert found["license"] == "cc-by-4.0" and "\n" not in found["name"]
    (rows,) = found["recordSet"]
    types = [field["dataType"].removeprefix("sc:") for field in rows["field"]]
    assert types == ["Text", "Text", "Integer", "Float", "Boolean", "DateTime"]
    in_file = [field["source"]["extract"]["column"] for field in rows["field"]]
    assert in_file == list(pd.read_csv(tmp_path / "twin.csv")) and in_file[1] == "'=a b/c"
    assert rows["field"][1]["@id"] == "rows/%3Da%20b%2Fc"


def test_croissant_says_of_privacy_what_the_ledger_says(tmp_path):
    for spent, said, hidden, use in (
        (ledger(), "fitted with differential privacy", "Noise hides what is rare", "Training"),
        (FLAGGED, "fitted with selective differential privacy", "hides what a detector", "Only"),
        (ledger(NO_PRIVACY), "WITHOUT a privacy guarantee", "Nothing hides", "Only"),
    ):
        found, _ = described(tmp_path, spent)
        claim = guarantee(spent)
        assert {name for name in found if name.startswith("rai:")} == RESPONSIBLE
        assert said in found["description"] and said in found["rai:dataCollection"]
        assert claim.sentence in found["rai:personalSensitiveInformation"]
        assert {*claim.excludes} <= {*found["rai:dataLimitations"]}
        assert ("differential-privacy" in found["keywords"]) == claim.is_of_whole_records
        assert hidden in found["rai:dataBiases"][0] and found["rai:dataUseCases"][0].startswith(use)
        as_private = "Treat it as private" in found["rai:dataUseCases"][0]
        assert as_private == (claim.epsilon is None) and "license" not in found


def test_croissant_says_whether_the_labels_were_compared_with_the_texts(tmp_path):
    bare = replace(description(), schema=Schema("review", "str", (), ("review",)))
    found = describe_data_set(bare, ledger(), "csv", 6, "0" * 64, {"review": ("review", "O")})
    assert "no labels" in json.loads(found)["rai:dataAnnotationProtocol"]
    for redrawn, said in (({}, "No one checked"), ({"denied": 3}, "teacher judged")):
        found, _ = described(tmp_path, redrawn=redrawn)
        assert said in found["rai:dataAnnotationProtocol"]


@pytest.mark.parametrize("spent", [ledger(), FLAGGED])
def test_the_draft_has_the_registrys_fields_and_marks_what_only_the_curator_knows(tmp_path, spent):
    _, draft = described(tmp_path, spent, title=HOSTILE)
    claim, parts = guarantee(spent), draft["deployment"]
    assert {*draft} == {"url_slug", "status", "tier", "deployment"} and draft["status"] == "Draft"
    assert parts["basic"].keys() == NEEDED and parts["basic"]["publication_date"] == UNDATED
    assert all(parts[part][field] in known for (part, field), known in KNOWN.items())
    assert (parts["dp_variant"]["variant_name"] == "Custom") == (spent is FLAGGED)
    stated = parts["privacy_loss"]["privacy_parameters"]
    assert 0 <= stated["epsilon"] - claim.epsilon < 0.01 and stated["delta"] == claim.delta
    assert str(draft).count(TO_FILL_IN.format("")) == 7
    # the registry shows it as Markdown
    assert "\\<script\\>" in parts["basic"]["name"] and "\\$y" in parts["basic"]["name"]


def test_nothing_is_drafted_without_a_guarantee_and_an_old_draft_goes(tmp_path):
    assert described(tmp_path)[1] is not None
    assert described(tmp_path, ledger(NO_PRIVACY))[1] is None
    assert verify(tmp_path).guarantee.epsilon is None


@pytest.mark.parametrize("name", [PAGE, CROISSANT, DEPLOYMENT])
def test_verify_finds_one_that_was_altered_or_added_and_does_not_miss_it(tmp_path, name):
    share = hand_over(tmp_path / "share").twin.parent
    text = (share / name).read_text("utf-8")
    (share / name).write_text(text + "\n", "utf-8")
    assert f"{name}: was altered" in refusal(verify, share, error=VerificationError)
    (share / name).unlink()
    assert verify(share).rows == 6
    share = hand_over(tmp_path / "open", ledger(NO_PRIVACY)).twin.parent
    (share / name).write_text(text, "utf-8")  # of a twin with a guarantee
    said = "is not one of the files" if name == DEPLOYMENT else "was altered"
    assert said in refusal(verify, share, error=VerificationError)
