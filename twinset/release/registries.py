"""A twin as registries read it: Croissant for data hubs, and a draft for a registry of deployments.

Both follow from the same facts as the card. What only the curator knows is left out of the first
and marked in the second. Nothing here decides what is guaranteed.

Sources:
    - Croissant 1.1, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html
    - its responsible-AI fields 1.0, https://docs.mlcommons.org/croissant/docs/croissant-rai-spec.html
    - `schemas/deployments-schema.yaml` of https://github.com/opendp/deployments-registry-data
      at commit 3e9c812
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from twinset import __version__
from twinset.privacy.accounting.accountant import up_decimals
from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import one_of
from twinset.release.card import (
    WRITTEN,
    TwinDescription,
    describe_event,
    one_line,
    plain,
    say_how_fitted,
)

CROISSANT, DEPLOYMENT = "croissant.json", "deployment.yaml"
TO_FILL_IN = "TO FILL IN: {}"
UNDATED = "1900-01-01"  # as in the registry's own template
_MIME = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "jsonl": "application/jsonlines",
    "parquet": "application/x-parquet",
}
_TYPES = {
    "b": "sc:Boolean",
    "i": "sc:Integer",
    "u": "sc:Integer",
    "f": "sc:Float",
    "M": "sc:DateTime",
}
# Terms of Croissant by their own names, as the specification's examples have them.
_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty "
    "fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet "
    "references regex repeated replace samplingRate separator source subField transform"
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_SPECIFICATIONS = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
_IMITATION = "Names of people that occur in a row may be made up, and may belong to real people."
# What noise hides, and what the twin is good for, by what is guaranteed.
_WHOLE = (
    "Noise hides what is rare.",
    "Training, testing and development where the private rows may not be used",
)
_FLAGGED = (
    "Noise hides what a detector flagged. All else may be repeated word for word.",
    "Only what the private rows may be used for, unless all that no detector flagged is fit to "
    "publish",
)
_NOTHING = (
    "Nothing hides what is rare. Rows of the private table may be repeated word for word.",
    "Only what the private rows themselves may be used for. Treat it as private",
)
_WITHDRAWAL = (
    "A record cannot be withdrawn from a twin that is already published. A new twin without it "
    "costs its own epsilon."
)


def describe_data_set(
    description: TwinDescription,
    ledger: Ledger,
    format: str,
    rows: int,
    sha256: str,
    columns: Mapping[str, tuple[str, str]],
) -> str:
    """Return the twin's Croissant description, with its responsible-AI fields, as JSON-LD.

    It has no date, creator and address, which a hub knows, and a licence only if one was named.

    Args:
        description: how the twin was made.
        ledger: the spending of the model that wrote it.
        format: of the twin's file, an ending of `FORMATS` without its dot.
        rows: number of the twin's rows.
        sha256: of the twin's file.
        columns: by name, the name in the file and the kind of the dtype, as NumPy writes it.
    """
    claim, file = guarantee(ledger), f"twin.{format}"
    whole, fitted = claim.is_of_whole_records, say_how_fitted(claim)
    hidden, use = _NOTHING if claim.epsilon is None else _WHOLE if whole else _FLAGGED
    labelled = "The model was given the labels of a row before it wrote the text. "
    if description.redrawn.get("denied"):
        labelled += "Its own teacher judged them, and some texts were drawn again."
    else:
        labelled += "No one checked whether the text fits them."
    if not description.schema.attributes:
        labelled = "The rows have no labels."
    others = {column.name: one_line(column.about) for column in description.columns}
    about = {name: "a label" for name in columns} | {description.schema.text: "the text"} | others
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"rows/{quote(name, safe='')}",
            "name": one_line(name),
            "description": about[name],
            "dataType": _TYPES.get(kind, "sc:Text"),
            "source": {"fileObject": {"@id": file}, "extract": {"column": written}},
        }
        for name, (written, kind) in columns.items()
    ]
    data = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _SPECIFICATIONS,
        "name": one_line(description.title),
        "description": f"A synthetic twin, {rows} rows. {WRITTEN.format(fitted)} "
        f"{belief_sentence(claim)}",
        **({} if description.licence == "unknown" else {"license": one_line(description.licence)}),
        "keywords": ["synthetic", *(["differential-privacy"] if whole else [])],
        "isLiveDataset": False,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file,
                "name": file,
                "contentUrl": file,
                "encodingFormat": _MIME[format.split(".")[0]],
                "sha256": sha256,
            }
        ],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "rows", "name": "rows", "field": fields}],
        "rai:dataCollection": f"No row was collected from a person. {WRITTEN.format(fitted)}",
        "rai:dataCollectionType": ["Others: synthetic data"],
        "rai:dataCollectionRawData": f"A private table of {ledger.records} {one_of(ledger)}s. It "
        "is not part of this data set.",
        "rai:dataPreprocessingProtocol": [describe_event(event) for event in ledger.events],
        "rai:dataAnnotationProtocol": labelled,
        "rai:personalSensitiveInformation": [claim.sentence, _IMITATION],
        "rai:dataBiases": [
            "Rows repeat what is common in the private table and in what the base model had read. "
            f"{hidden} Nothing in this file measures either."
        ],
        "rai:dataUseCases": [
            use,
            "Not for statements or decisions about a single person. No row stands for one",
        ],
        "rai:dataLimitations": [
            "What the rows say may be false, biased or offensive",
            *claim.excludes,
        ],
        "rai:dataReleaseMaintenancePlan": [_WITHDRAWAL],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def draft_deployment(description: TwinDescription, ledger: Ledger, rows: int) -> str | None:
    """Return a draft for the OpenDP Deployments Registry as YAML. None: nothing is guaranteed.

    The registry shows each text as Markdown, so all names go through `plain`. What only the curator
    knows is marked with "TO FILL IN", and the day of publication has the registry's own blank.
    """
    import yaml

    claim = guarantee(ledger)
    if claim.epsilon is None:
        return None
    schema, policy = description.schema, f"{ledger.policy}, {ledger.policy_form} form"
    slug = "-".join(re.findall("[a-z0-9]+", description.title.lower())) or "synthetic-twin"
    listed = f"The columns of the twin are {', '.join(map(plain, schema.columns))}."
    draft = {
        "url_slug": slug,
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": plain(description.title),
                "data_curators": [TO_FILL_IN.format("who publishes it")],
                "intended_use": TO_FILL_IN.format("what it is for"),
                "data_product_type": "Synthetic data",
                "data_product_region": TO_FILL_IN.format("whom the private table describes"),
                "description": f"{rows} rows, written by a language model "
                f"({plain(description.base_model)}) that was fitted to a private table.",
                "publication_date": UNDATED,
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if claim.is_of_whole_records else "Custom",
                "data_domain": f"Tables of {ledger.records} {one_of(ledger)}s. {listed}",
                "unprotected_quantities": _itemize(ledger.public_inputs),
            },
            "privacy_loss": {
                "privacy_unit": plain(claim.unit),
                "privacy_unit_details": plain(claim.neighbouring),
                "privacy_parameters": {
                    "epsilon": float(up_decimals(claim.epsilon)),
                    "delta": claim.delta,
                },
                "privacy_parameters_details": plain(claim.sentence),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": "The curator reads the private table and is trusted. People who have "
                "the twin, the model or the ledger are not.",
                "release_type": "One release",
                "release_type_details": TO_FILL_IN.format("other runs on the same table"),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Rows are drawn from the released model and counts. "
                "No step after the noise reads a record.",
                "composition": "Numerical composition of the privacy loss distributions of all "
                "events of the ledger.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": TO_FILL_IN.format(
                    "whether an option was chosen by looking at private results, which the "
                    "guarantee does not cover"
                ),
                "mechanisms": "\n".join(f"- {describe_event(event)}" for event in ledger.events)
                + f"\n- Noise policy: {plain(policy)}\n- Batches: {plain(ledger.sampler)} sampling"
                f"\n- Clipping: {plain(ledger.clipping)}\n- Randomness: {plain(ledger.randomness)}",
                "justification": TO_FILL_IN.format("why this epsilon, and who decided"),
            },
            "administrative": {
                "sources": "`privacy.json` next to this file holds the ledger. `twinset verify` "
                "computes epsilon from it again.",
                "notes": f"Drafted by twinset {__version__} from the ledger. Not covered by the "
                f"guarantee:\n{_itemize(claim.excludes)}",
                "registry_authors": [TO_FILL_IN.format("who submits this")],
            },
        },
    }
    return yaml.safe_dump(draft, allow_unicode=True, sort_keys=False, width=float("inf"))


def _itemize(lines: Sequence[str]) -> str:
    """Return lines as a list of Markdown."""
    return "\n".join(f"- {plain(line)}" for line in lines)
