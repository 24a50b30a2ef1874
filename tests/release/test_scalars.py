"""Every number and word of share/ and model/ is public, noisy, or follows from what is.

Two runs with the same options, on tables of one shape that share no text and no proportion: what
differs between them is listed here with its reason, and all else must be equal. A figure of the
private table that somebody adds to these folders differs, and fails.
"""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.commands import call, fitted_scale
from twinset.sampling import twin_model as twin_models

N, OWNERS = 24, 12
TABLES = {
    "a": pd.DataFrame(
        {
            "review": [f"The plot of film {i} was good, the cast was better." for i in range(N)],
            "label": ["pos"] * (N - 2) + ["neg"] * 2,
            "who": [f"Person {i % OWNERS}" for i in range(N)],
        }
    ),
    "b": pd.DataFrame(  # many are repeated, and many too long
        {
            "review": ["Bad."] * (N // 2) + [f"Number {i}: dull! " * 20 for i in range(N // 2)],
            "label": ["pos"] * 3 + ["neg"] * (N - 3),  # no owner alone has one
            "who": [f"Somebody {min(i, OWNERS - 1)}" for i in range(N)],
        }
    ),
}
OPTIONS = ("--text", "review", "--labels", "label=neg,pos", "--format", "csv", "--steps", "2")
OPTIONS += ("--columns", "none")  # by noise other ones may be kept, see `test_columns`
SIZES = ("--batch-size", "8", "--max-tokens", "16", "--rows", "6", "--epsilon", "30")

# What may differ: the place, and why it may.
DIFFERS = {
    "share/twin.csv": "rows drawn from the model: post-processing",
    "model/model.safetensors": "weights: post-processing of noisy sums on a grid",
    "model/token_tilt.safetensors": "fitted to noisy counts on a grid: post-processing",
    "model/checksums.json /token_tilt.safetensors": "a hash of it",
    "model/text_lengths.safetensors": "shares by noisy counts on a grid: post-processing",
    "model/checksums.json /text_lengths.safetensors": "a hash of it",
    "model/twinset.json /label_counts/#/#": "whole numbers with noise",
    "model/checksums.json /model.safetensors": "a hash of these weights",
    "model/checksums.json /twinset.json": "a hash of these counts",
    "share/privacy.json /files/model/sha256": "a hash of the model's hashes",
    "share/privacy.json /files/twin/sha256": "a hash of these rows",
    "share/privacy.json /files/card/sha256": "a hash of the card",
    "share/privacy.json /files/page/sha256": "a hash of a page that counts and shows these rows",
    "share/croissant.json /distribution/#/sha256": "a hash of these rows",
    "share/privacy.json /files/croissant/sha256": "a hash of a file that has it",
    "share/README.md": "rows of each label in the twin, in two lines: post-processing",
}
# Of the page: counts of the twin's rows, and some of them. All else on it must be equal.
TWIN_ON_PAGE = re.compile(r'<div class="charts">.*?</div>|<ol>.*?</ol>', re.DOTALL)
CARD_LINES = re.compile(r"- `label` = `(pos|neg)`: \d+|- Texts .*formulas: \d+.*")

# What is no whole number: an option, or arithmetic on options and on N, which is public.
FLOATS = {
    r".*/(max_grad_norm|target_epsilon)": "an option",
    r".*/delta": "an option, or N to a power",
    r".*/sample_rate": "batch size / N",
    r".*/events/#/(noise_multiplier|least_share)": "calibrated to ε, δ, steps and sample rate",
    r".*/weight_scale/.*": "constants of a public text",
    r"share/privacy.json /guarantee/(epsilon|by_weight/#/#)": "computed from the ledger",
    r"model/config.json /.*": "of the base model",
}


def scalars(data, place=""):
    """Yield place and value of everything in plain values. Places in a list are all '#'."""
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else (("#", value) for value in data)
        for key, value in items:
            yield from scalars(value, f"{place}/{key}")
    else:
        yield place, data


def released(run: Path) -> dict[str, list]:
    """Return all that is in share/ and model/: of JSON each value, of other text each line."""
    found = {}
    for path in sorted(p for part in ("share", "model") for p in (run / part).rglob("*.*")):
        name = str(path.relative_to(run))
        if path.suffix == ".json":
            for place, value in scalars(json.loads(path.read_text("utf-8"))):
                found.setdefault(f"{name} {place}", []).append(value)
        elif path.suffix == ".md":
            found[name] = path.read_text("utf-8").splitlines()
        elif path.suffix == ".html":
            page, parts = TWIN_ON_PAGE.subn("", path.read_text("utf-8"))
            assert parts == 2 and len(page) > 3000
            found[name] = page.splitlines()
        else:
            found[name] = [path.read_bytes()]
    return found


def not_public(one, other) -> set[str]:
    """Return the places whose values two runs do not share, and need to."""
    differ = {place for place in one.keys() | other.keys() if one.get(place) != other.get(place)}
    lines = set(one["share/README.md"]) ^ set(other["share/README.md"])
    odd = {line for line in lines if not CARD_LINES.fullmatch(line)}
    return (differ - DIFFERS.keys()) | odd


def unexplained_floats(found) -> set[str]:
    """Return the places of numbers with a fraction, or made to have one, that are not declared."""
    return {
        place
        for place, values in found.items()
        if any(isinstance(value, float) for value in values)
        and not any(re.fullmatch(known, place) for known in FLOATS)
    }


PLANTED = "model/twinset.json /note/"


@pytest.mark.parametrize(
    "policy",
    [
        ("--group-size", "2"),  # two figures of the table are planted into this one
        ("--noise-policy", "adaptive", "--weight-scale", "scale.json", "--epsilon-max", "40"),
        pytest.param(("--owner", "who"), marks=pytest.mark.slow),
        pytest.param(("--noise-policy", "selective"), marks=pytest.mark.slow),
        pytest.param(
            ("--noise-policy", "importance", "--policy-form", "published"), marks=pytest.mark.slow
        ),
    ],
    ids=" ".join,
)
def test_only_noisy_figures_and_what_follows_from_them_differ(
    tmp_path, monkeypatch, tiny_base, policy
):
    monkeypatch.chdir(tmp_path)
    if "scale.json" in policy:
        fitted_scale(tmp_path, tiny_base)
    in_groups = "--group-size" in policy
    runs, planted, plain = [], set(), twin_models.write_json
    for which, table in TABLES.items():
        table.to_csv("t.csv", index=False)
        if in_groups:
            texts = table.review
            note = {"mean length": texts.str.len().mean(), "texts": texts.nunique()}
            planted = {PLANTED + name for name in note}

            def write(path, data, note=note):
                described = path.name == twin_models.DESCRIPTION
                plain(path, data | {"note": note} if described else data)

            monkeypatch.setattr(twin_models, "write_json", write)
        given = ("t.csv", *OPTIONS, *SIZES, "--base-model", tiny_base, "--run", which, *policy)
        made = call("generate", *given)
        assert made.code == 0, made.err
        runs.append(released(Path(which)))
    stated = runs[0].get("share/privacy.json /ledger/group_size")
    assert stated == ([2] if in_groups else None)
    assert not_public(*runs) == planted
    assert unexplained_floats(runs[0]) == planted & {f"{PLANTED}mean length"}
    # names, types and shapes of the weights: a safetensors file begins with its header's length
    weights = [run["model/model.safetensors"][0] for run in runs]
    headers = [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in weights]
    assert headers[0] == headers[1]
    for run in runs:
        counts = run["model/twinset.json /label_counts/#/#"]
        assert sum(type(number) is int and number >= 0 for number in counts) == 2  # two labels
