"""Every option by its name: one table for the flags, the TOML file and the Python keywords.

The options of a model are fields of `twinset.config`, with help text and range. Those of the table,
the run and its rows are named here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from twinset.bounds import SEEDS, Bounds, option_name, value_types
from twinset.config import EPSILON as EPSILON_BOUNDS
from twinset.config import (
    GROUPS,
    PrivacyConfig,
    RunConfig,
    SamplingConfig,
    SpeedConfig,
    TrainingConfig,
)
from twinset.config import HOLD_OUT as HOLD_OUT_BOUNDS
from twinset.config import ROWS as ROWS_BOUNDS
from twinset.errors import InputError
from twinset.policies import POLICIES, PolicyConfig, PolicyOptions, find_policy, policy_names
from twinset.table.schema import read_toml


@dataclass(frozen=True)
class Option:
    """One option."""

    name: str  # in Python and, with dashes for underscores, everywhere else
    kind: type[str] | type[int] | type[float] | type[bool]  # of one value
    help: str  # one line
    values: str | None = None  # what to show for a value, where the type says too little
    repeatable: bool = False  # may be given several times (its value is a tuple)
    default: Any = None  # for the help text (None: chosen later, or there is none)
    bounds: Bounds | None = None  # of a number
    is_expert: bool = False  # shown on the panel for experts

    @property
    def flag(self) -> str:
        """The option on the command line.

        >>> Option("top_p", float, "").flag
        '--top-p'
        """
        return f"--{self.name.replace('_', '-')}"


def options_of(group: Any) -> tuple[Option, ...]:
    """Return the options among the fields of a dataclass: all that have a help text."""
    found = []
    for one in fields(group):
        about = one.metadata
        if about.get("help"):
            kind = value_types(group)[one.name]
            parts = get_args(kind) or (kind,)  # of a union, or the words of a Literal
            values = about["values"] or ("|".join(parts) if get_origin(kind) is Literal else None)
            if one.name == "noise_policy":  # all are known only once every policy is loaded
                values = "|".join(policy_names())
            kind = next((t for t in parts if t in (str, int, float, bool)), str)
            more = {"default": one.default, "bounds": about["bounds"], "is_expert": about["expert"]}
            found.append(Option(option_name(one), kind, about["help"], values, **more))
    return tuple(found)


TABLE = (
    Option("text", str, "Column of texts, or '{title}: {body}'. Else guessed.", "COLUMN"),
    Option("attribute", str, "Column of labels. Repeat for several.", "COLUMN", True),
    Option("split", str, "Split of a data set, or sheet of an Excel file.", "NAME"),
    Option("drop_empty", bool, "Leave out every row without text or label, not only a few."),
    Option(
        "prompt",
        str,
        "The prompt, a template's name or a .toml file. Noisy counts choose one if omitted.",
        "PROMPT",
    ),
    Option("owner", str, "Column of whose row it is. Protects owners, not rows.", "COLUMN"),
    Option(
        "each_row_is_someone", bool, "No person has several rows, whatever a column looks like."
    ),
    Option(
        "labels",
        str,
        "All public values of a label column, or @FILE with one per line. Repeatable.",
        "COLUMN=VALUE,…",
        True,
    ),
    Option(
        "bins", str, "Public edges that turn a column of numbers into labels.", "COLUMN=N,…", True
    ),
    Option("merge_labels", bool, "Merge labels that differ only by case, blanks or one letter."),
    Option("drop_undeclared", bool, "Leave out rows whose label is not listed in `labels`."),
    Option("delimiter", str, "Separator of a CSV file. Detected if omitted.", ",|;|tab|…"),
    Option(
        "encoding",
        str,
        "Encoding of a CSV or JSON file, as Python names it. Detected if omitted.",
        "NAME",
    ),
    Option("multiline", bool, "CSV: lines within quotes are text, though they look like rows."),
    Option("strict", bool, "Refuse empty rows and odd characters instead of cleaning them."),
)
# Of a run too. Commands that measure several models keep text and labels alone.
COLUMNS = (
    Option(
        "columns", str, "Other columns to keep. Omitted: all that can be.", "all|none|NAME,…", True
    ),
    Option("kind", str, "Kind of another column, if it is not recognised.", "COLUMN=KIND", True),
    Option("range", str, "Public range of a column of numbers.", "COLUMN=LOW:HIGH", True),
    Option("values", str, "All values of another column. They are public.", "COLUMN=VALUE,…", True),
)
# Of rows that a model writes.
WHERE = Option(
    "where",
    str,
    "Value that all rows have: a label, another column, or a range of numbers.",
    "COLUMN=VALUE|LOW:HIGH",
    True,
)
# Of a run. Commands that measure several models hold rows out on their own.
HOLD_OUT = (
    Option(
        "hold_out",
        float,
        "Share of rows kept back to judge the twin. Omitted: 0.2 of 5,000 rows or more, else 0.",
        bounds=HOLD_OUT_BOUNDS,
    ),
)
# Of what counts in a table's account: runs, and each model of a comparison.
BUDGET = (
    Option(
        "budget",
        float,
        "Limit on the ε of all runs on this table together. Opens its account.",
        bounds=EPSILON_BOUNDS,
    ),
    Option(
        "budget_file", str, "The table's account. Omitted: <table>.budget.json, if any.", "FILE"
    ),
)
_EPSILON, _DELTA, *_OTHERS = options_of(PrivacyConfig)
_NONE = Option("no_privacy", bool, "Train without noise, for comparison. Guarantees nothing.")
PRIVACY = (_EPSILON, _DELTA, _NONE, *_OTHERS)
POLICY = options_of(PolicyConfig)
# Time of a run. Commands that train several models give each the plan that follows from N.
*_TRAINING, _MINUTES = options_of(TrainingConfig)
TRAINING, TIME = tuple(_TRAINING), (_MINUTES,)
SPEED = options_of(SpeedConfig)
ROWS = (
    Option(
        "rows",
        int,
        "Rows to write. Omitted: twice the table's, from 3,000 to a million, as time allows.",
        bounds=ROWS_BOUNDS,
    ),
    Option("rows_per_label", str, "Rows for each label: 500, or positive=500.", "[LABEL=]N", True),
    Option(
        "plan_file",
        str,
        "Table of labels with a column called rows. For a model, also of other columns.",
        "FILE",
    ),
)
DECODING = options_of(SamplingConfig)
TWIN_FILE = (
    Option("output", str, "Where to write the twin, its card and its ledger.", "FILE"),
    Option("format", str, "If the ending of `output` does not tell.", "parquet|csv|tsv|jsonl"),
    Option("no_formula_guard", bool, "CSV: leave cells alone that a spreadsheet would run."),
)
RUN = (
    Option("run", str, "Run folder. Omitted: runs/<table>-<n>.", "FOLDER"),
    Option("resume", bool, "Resume a run that was stopped."),
    Option(
        "accept_spend",
        bool,
        "Resume a run that was already resumed elsewhere, and count the ε of both.",
    ),
)
OVERWRITE = (Option("overwrite", bool, "Replace an existing run or output file."),)
SEED = (
    Option(
        "seed",
        int,
        "Seed of everything but the noise. No seed reaches the noise.",
        default=0,
        bounds=SEEDS,
    ),
)

PANELS: dict[str, tuple[Option, ...]] = {
    "Table": (*TABLE, *COLUMNS, *HOLD_OUT),
    "Privacy": PRIVACY,
    "Account": BUDGET,
    "Noise policy": POLICY,
    "Training": (*TRAINING, *TIME),
    "Speed": SPEED,
    "Rows": ROWS,
    "Decoding": DECODING,
    "Results": (*RUN, *TWIN_FILE, *OVERWRITE),
    "Repeating": SEED,
}
_KNOBS = tuple(o for panel in PANELS.values() for o in panel if o.is_expert)
PANELS = {t: tuple(o for o in panel if not o.is_expert) for t, panel in PANELS.items()}
PANELS["For experts"] = _KNOBS  # after the others
# What commands take that run every policy themselves, and one without privacy.
ANY_POLICY = (
    *TABLE,
    *(option for option in PRIVACY if option.name != "no_privacy"),
    *(option for option in POLICY if option.name != "noise_policy"),
    *TRAINING,
    *SPEED,
    *DECODING,
    *SEED,
)
OPTIONS: dict[str, Option] = {o.name: o for panel in PANELS.values() for o in panel}


def merge(given: Mapping[str, Any], file: str | Path | None) -> dict[str, Any]:
    """Join the options of the command line with those of a TOML file. The command line wins.

    In the file, options have their own names: `top-p = 0.9`. `no_privacy` becomes an ε of `None`.

    Raises:
        InputError: the file cannot be read, holds an unknown option or one of another type, or
            options contradict.
    """
    place, stored = f"`config={file}`", {}
    data = {} if file is None else read_toml(Path(file), place)
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in OPTIONS:
            raise InputError(unknown_option(name, f"{place}: "))
        option, values = OPTIONS[name], []
        for one in value if option.repeatable and isinstance(value, list) else [value]:
            # a whole number is accepted for a text or for any number
            if type(one) is not option.kind and (type(one) is not int or option.kind is bool):
                kinds = {str: "text", int: "a whole number", float: "a number"}
                kind = kinds.get(option.kind, "true or false")
                raise InputError(f"{place}: {option.flag[2:]} must be {kind}")
            try:
                values.append(option.kind(one))
            except OverflowError:
                raise InputError(f"{place}: {option.flag[2:]} is too large a number") from None
        stored[name] = tuple(values) if option.repeatable else values[0]
    if given.get("no_privacy"):
        stored.pop("epsilon", None)
    if "epsilon" in given:
        stored.pop("no_privacy", None)
    merged = {**stored, **given}
    if merged.pop("no_privacy", False):
        if "epsilon" in merged:
            raise InputError("`epsilon` and `no_privacy` contradict each other. Give one of them.")
        merged["epsilon"] = None
    return merged


def run_config(options: Mapping[str, Any], any_policy: bool = False) -> RunConfig:
    """Sort options into the groups of a run. Fields that have no flag are options here too.

    With `any_policy`, options of other noise policies than the chosen one are accepted too.

    Raises:
        InputError: no group has an option or it would have no effect, or its group refuses the
            value.

    >>> run_config({"epsilon": 3.0, "seed": 7}).sampling.seed
    7
    """
    config, known = RunConfig(), set()
    for group, kind in GROUPS.items():
        names = {f.name: option_name(f) for f in fields(kind)}  # a `seed` goes to two groups
        known |= set(names.values())
        values = {field: options[name] for field, name in names.items() if name in options}
        config = replace(config, **{group: kind(**values)})
    if unknown := sorted(set(options) - known):
        if unknown[0] in OPTIONS:
            raise InputError(
                f"`{unknown[0]}` describes the table, the run or its rows, not the model. Give it "
                "to `generate`, `fit` or `plan`."
            )
        raise InputError(unknown_option(unknown[0], among=tuple(known)))
    if config.privacy.group_size is not None and config.privacy.target_epsilon is None:
        raise InputError("`group_size` does nothing without privacy. Leave it out.")
    policy = config.policy
    for name in () if any_policy else options:
        # refuse what looks as if it protected somebody, and would do nothing
        used, needs = True, ""
        # the policies that have an option of their own of this name
        is_shared = hasattr(PolicyOptions, name)
        owners = [p for p in POLICIES.values() if not is_shared and hasattr(p.options, name)]
        if name == "detector":
            used = policy.policy_class.masks(policy)
            masking = [n for n in policy_names() if find_policy(n).masks(PolicyOptions())]
            needs = " or ".join([*(f"`noise_policy={n}`" for n in masking), "`redact_only`"])
        elif owners:
            used, needs = policy.policy_class in owners, f"`noise_policy={owners[0].name}`"
            forms = {p for p in POLICIES.values() if p.name == owners[0].name}
            if len(owners) == 1 and len(forms) > 1:
                needs += f" in its {owners[0].form} form"
        if not used:
            raise InputError(f"`{name}` does nothing without {needs}. Leave it out.")
    return config


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `run_config` knows."""
    other = {o.name for o in (*PANELS["Table"], *BUDGET, *ROWS, WHERE, *PANELS["Results"])}
    return {name: value for name, value in options.items() if name not in other}


def unknown_option(name: str, place: str = "", among: Collection[str] = tuple(OPTIONS)) -> str:
    """Return what is wrong with an option's name, and which one may be meant."""
    close = get_close_matches(name, among, n=1)
    hint = f". Did you mean {close[0].replace('_', '-')}?" if close else ""
    return f"{place}unknown option {name.replace('_', '-')!r}{hint}"
