"""Every option by its name: one table from which flags, the TOML file and the Python keywords come.

Knows names, types and help texts. What a value means and which values are refused is for
`twinset.config` and `twinset.run.request`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from twinset.bounds import Bounds, bounds_in, option_name, value_types
from twinset.config.run_config import GROUPS, RunConfig
from twinset.config.run_config import HOLD_OUT as HOLD_OUT_BOUNDS
from twinset.config.run_config import ROWS as ROWS_BOUNDS
from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.policies import (
    PolicyConfig,
    PolicyOptions,
    find_policy,
    forms_of,
    owners_of_option,
    policy_names,
)


@dataclass(frozen=True)
class Option:
    """One option."""

    name: str  # in Python and, with dashes for underscores, everywhere else
    kind: type[str] | type[int] | type[float] | type[bool]  # of one value
    help: str  # one line
    values: str | None = None  # what to show for a value, where the type says too little
    repeatable: bool = False  # may be given several times; its value is a tuple

    @property
    def flag(self) -> str:
        """The option on the command line.

        >>> Option("top_p", float, "").flag
        '--top-p'
        """
        return f"--{self.name.replace('_', '-')}"

    def read(self, value: Any, place: str) -> Any:
        """Return a value of a TOML file as the command line would give it.

        Raises:
            InputError: it has another type.
        """
        values = []
        for one in value if self.repeatable and isinstance(value, list) else [value]:
            exact = type(one) is self.kind
            if not exact and (type(one) is not int or self.kind not in (float, str)):
                kinds = {str: "text", int: "a whole number", float: "a number"}
                kind = kinds.get(self.kind, "true or false")
                raise InputError(f"{place}: {self.flag[2:]} must be {kind}")
            try:
                values.append(self.kind(one))
            except OverflowError:
                raise InputError(f"{place}: {self.flag[2:]} is too large a number") from None
        return tuple(values) if self.repeatable else values[0]


def options_of(group: Any) -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass are: all that have a help text."""
    found = []
    for one in fields(group):
        if help := one.metadata.get("help"):
            types = get_args(value_types(group)[one.name]) or (value_types(group)[one.name],)
            kind = next((t for t in types if t in (str, int, float, bool)), str)
            values = one.metadata["values"]
            if one.name == "noise_policy":  # all are known only once every policy is loaded
                values = "|".join(policy_names())
            found.append(Option(option_name(one), kind, help, values))
    return tuple(found)


TABLE = (
    Option("text", str, "Column of texts, or '{title}: {body}'; else guessed.", "COLUMN"),
    Option("attribute", str, "Column of labels; repeat it for several.", "COLUMN", True),
    Option("split", str, "Split of a data set, or Excel sheet, of several.", "NAME"),
    Option("drop_empty", bool, "Leave out all rows that lack text or label, not just a few."),
    Option(
        "prompt",
        str,
        "Template's name, .toml file, or the prompt itself; by default counts choose one.",
        "PROMPT",
    ),
    Option("owner", str, "Column of whose record it is: protects owners, not records.", "COLUMN"),
    Option(
        "labels",
        str,
        "All public values of a label column; @FILE: one a line. Repeat it for several.",
        "COLUMN=VALUE,…",
        True,
    ),
    Option(
        "bins", str, "Public edges that cut a column of numbers into labels.", "COLUMN=N,…", True
    ),
    Option("merge_labels", bool, "Merge labels that differ by case, blanks or, if rare, a letter."),
    Option("drop_undeclared", bool, "Leave out rows with a value that `labels` does not declare."),
    Option("delimiter", str, "CSV: what separates cells; left out: detected.", ",|;|tab|…"),
    Option("encoding", str, "CSV, JSON: as Python names it; left out: detected.", "NAME"),
    Option(
        "strict", bool, "Refuse, instead of leaving out or cleaning: empty rows, odd characters."
    ),
)
# Of a run; commands that measure several models hold rows out by themselves.
HOLD_OUT = (
    Option(
        "hold_out",
        float,
        "Share of rows kept back, to judge the twin by; left out: 0.2 from 5,000 rows on, else 0.",
    ),
)
PRIVACY = (
    Option("epsilon", float, "ε of all that is shared; adaptive: of the most unusual records."),
    Option("delta", float, "δ; left out: min(1e-5, 0.01/N^1.1)."),
    Option("no_privacy", bool, "Train without noise, for comparison. Nothing is guaranteed."),
    Option("max_grad_norm", float, "C, to which each record's gradient is clipped."),
    Option("max_records_per_owner", int, "`owner`: m, records of an owner in a step."),
    Option("group_size", int, "Also state the guarantee for any group of so many records."),
    Option("label_count_share", float, "Share of ε for the noisy label counts."),
    Option("marginal_share", float, "Share of ε for noisy counts of tokens and lengths; 0: none."),
    Option(
        "teacher_share",
        float,
        "Share of ε for a classifier of labels; 0: none; left out: 0.1 where records suffice.",
    ),
)
POLICY = options_of(PolicyConfig)
TRAINING = (
    Option("base_model", str, "Asset (see `twinset models`), local folder or hub name.", "MODEL"),
    Option(
        "method",
        str,
        "What is trained: adapters, the same beside four-bit weights, or all weights.",
        "lora|qlora|full",
    ),
    Option("lora_rank", int, "Rank of the adapters."),
    Option(
        "steps",
        int,
        "Training steps; 0: none. Left out: none where N·ε is below 70,000, else by N and time.",
    ),
    Option("batch_size", int, "Expected records a step; left out: chosen from N and the time."),
    Option("learning_rate", float, "Adam's, at its peak; left out: by `method`."),
    Option("max_tokens", int, "Longest text kept, in tokens."),
    Option("mismatch_weight", float, "λ of the prompt-mismatch loss; 0 switches it off."),
    Option("mismatch_prompts", int, "Wrong prompts a record is set against."),
    Option("mismatch_form", str, "Form of that loss.", "bounded|published"),
)
# Of a run; commands that train several models give each the plan that N asks for.
TIME = (Option("max_minutes", float, "Time of the whole run, by which steps are chosen."),)
SPEED = (
    Option(
        "physical_tokens",
        int,
        "Tokens in memory at once; changes no result. Left out: 2,048, on a GPU 16,384.",
    ),
    Option("physical_batch", int, "The same in records; overrides the tokens."),
    Option(
        "precision", str, "Number format of the model's matrix products.", "auto|float32|bfloat16"
    ),
    Option("gradient_checkpointing", bool, "Compute layers twice instead of keeping them."),
    Option("low_memory", bool, "Keep no record's gradient, whatever time that costs."),
    Option(
        "processes", int, "Processes that train and sample together; the guarantee is the same."
    ),
    Option("device", str, "Device to compute on; auto: a GPU, if any.", "auto|cpu|cuda|cuda:N"),
)
ROWS = (
    Option(
        "rows",
        int,
        "Rows in total; left out: twice the table's, at least 3,000, if there is time.",
    ),
    Option("rows_per_label", str, "500 for each label, or positive=500.", "[LABEL=]N", True),
    Option("plan_file", str, "Table of labels with a column named rows.", "FILE"),
)
DECODING = (
    Option("top_p", float, "Draw from the likeliest tokens up to this probability."),
    Option("temperature", float, "Below 1: safer text; above 1: more varied."),
    Option(
        "guidance",
        float,
        "Classifier-free guidance of rows towards their label; left out: 0 where a teacher judges "
        "them, else 0.5.",
    ),
    Option(
        "tilt",
        float,
        "How far words follow released counts; 0: neither words nor lengths do.",
    ),
    Option("max_new_tokens", int, "Longest text written; left out: as in training."),
    Option("sample_batch", int, "Rows written at once, at most: fewer beyond 1 GiB (a GPU's 8)."),
    Option(
        "endings",
        str,
        "Of unfinished rows: cut at the last sentence, or draw again, which favours short ones.",
        "keep|cut|redraw",
    ),
    Option(
        "filter",
        str,
        "Draw rows like web pages or with vulgar words again.",
        "none|debris|vulgar|all",
    ),
    Option(
        "teacher_redraws",
        int,
        "How often a row is drawn again whose labels teacher and noisy counts reject; 0: never.",
    ),
)
TWIN_FILE = (
    Option("output", str, "The twin beside your other files; card and ledger too.", "FILE"),
    Option("format", str, "Where the ending of `output` does not say.", "parquet|csv|tsv|jsonl"),
    Option("no_formula_guard", bool, "CSV: leave cells that a spreadsheet would run as they are."),
)
RUN = (
    Option("run", str, "Run folder; left out: runs/<table>-<n>.", "FOLDER"),
    Option("resume", bool, "Resume a run that was killed or stopped."),
    Option(
        "accept_spend",
        bool,
        "Resume where the run was resumed already elsewhere, and count the ε of both.",
    ),
)
OVERWRITE = (Option("overwrite", bool, "Replace an existing run or output file."),)
SEED = (Option("seed", int, "For everything but the noise, which no seed reaches."),)

PANELS: dict[str, tuple[Option, ...]] = {
    "Table": (*TABLE, *HOLD_OUT),
    "Privacy": PRIVACY,
    "Noise policy": POLICY,
    "Training": (*TRAINING, *TIME),
    "Speed": SPEED,
    "Rows": ROWS,
    "Decoding": DECODING,
    "Results": (*RUN, *TWIN_FILE, *OVERWRITE),
    "Repeating": SEED,
}
EXPERTS = "For experts"  # a panel of its own, behind the others
_EXPERT = """
    max_grad_norm label_count_share marginal_share teacher_share
    lora_rank
    mismatch_weight mismatch_prompts mismatch_form physical_tokens physical_batch
    gradient_checkpointing low_memory sample_batch
""".split()
_EXPERT += [one.name for one in fields(PolicyConfig) if one.metadata["expert"]]
_KNOBS = tuple(o for panel in PANELS.values() for o in panel if o.name in _EXPERT)
PANELS = {t: tuple(o for o in panel if o not in _KNOBS) for t, panel in PANELS.items()}
PANELS[EXPERTS] = _KNOBS
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
    """Join the command line's options with those of a TOML file; the command line's win.

    `no_privacy` becomes an ε of `None`.

    Raises:
        InputError: the file cannot be read or has an unknown option, or options contradict.
    """
    stored = read_options(Path(file)) if file is not None else {}
    if given.get("no_privacy"):
        stored.pop("epsilon", None)
    if "epsilon" in given:
        stored.pop("no_privacy", None)
    merged = {**stored, **given}
    if merged.pop("no_privacy", False):
        if "epsilon" in merged:
            raise InputError("`epsilon` and `no_privacy` contradict each other; give one of them")
        merged["epsilon"] = None
    return merged


def read_options(path: Path) -> dict[str, Any]:
    """Read options from a TOML file, where they stand by their names: `top-p = 0.9`.

    Raises:
        InputError: the file cannot be read, or holds an unknown option or one of another type.
    """
    try:
        data = tomllib.loads(read_text(path, SMALL))
    except InputError as error:
        raise InputError(f"`config` {error}") from None
    except OSError as error:
        raise InputError(f"`config={path}`: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"`config={path}`: not valid TOML ({error})") from None
    named = {key.replace("-", "_"): value for key, value in data.items()}
    if unknown := [name for name in named if name not in OPTIONS]:
        raise InputError(unknown_option(unknown[0], f"`config={path}`: "))
    return {name: OPTIONS[name].read(value, f"`config={path}`") for name, value in named.items()}


def run_config(options: Mapping[str, Any], any_policy: bool = False) -> RunConfig:
    """Sort options into the groups of a run. Fields that have no flag are options here too.

    With `any_policy`, options of noise policies that are not chosen are taken too.

    Raises:
        InputError: an option that no group has or that would do nothing, or a value that its group
            refuses.

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
                f"`{unknown[0]}` is of the table, the run or its rows, and not of the model: give "
                "it to `generate`, `fit` or `plan` where these take it"
            )
        raise InputError(unknown_option(unknown[0], among=tuple(known)))
    if config.privacy.group_size is not None and config.privacy.target_epsilon is None:
        raise InputError("`group_size` does nothing without privacy; leave it out")
    policy = config.policy
    for name in () if any_policy else options:
        # refuse what looks as if it protected somebody, and would do nothing
        used, needs, owners = True, "", owners_of_option(name)
        if name == "detector":
            used = policy.policy_class.masks(policy)
            masking = [n for n in policy_names() if find_policy(n).masks(PolicyOptions())]
            needs = " or ".join([*(f"`noise_policy={n}`" for n in masking), "`redact_only`"])
        elif owners:
            used, needs = policy.policy_class in owners, f"`noise_policy={owners[0].name}`"
            if len(owners) == 1 and len(forms_of(owners[0].name)) > 1:
                needs += f" in its {owners[0].form} form"
        if not used:
            raise InputError(f"`{name}` does nothing without {needs}; leave it out")
    return config


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that `run_config` knows."""
    other = {o.name for o in (*PANELS["Table"], *ROWS, *PANELS["Results"])}
    return {name: value for name, value in options.items() if name not in other}


def default_of(name: str) -> Any:
    """Return an option's default for a help text; None where it is chosen later or has none.

    >>> default_of("epsilon"), default_of("steps"), default_of("rows")
    (8.0, None, None)
    """
    for kind in GROUPS.values():
        for field in fields(kind):
            if option_name(field) == name and field.default is not MISSING:
                return field.default
    return None


def bounds_of(name: str) -> Bounds | None:
    """Return the numbers that an option takes; None where it takes no number.

    >>> str(bounds_of("top_p")), bounds_of("text")
    ('from 0.001 to 1', None)
    """
    found = {n: bounds for kind in GROUPS.values() for n, bounds in bounds_in(kind).items()}
    return (found | {"rows": ROWS_BOUNDS, "hold_out": HOLD_OUT_BOUNDS}).get(name)


def unknown_option(name: str, place: str = "", among: Collection[str] = tuple(OPTIONS)) -> str:
    """Return what is wrong with an option's name, and which one may be meant."""
    close = get_close_matches(name, among, n=1)
    hint = f"; did you mean {close[0].replace('_', '-')}?" if close else ""
    return f"{place}unknown option {name.replace('_', '-')!r}{hint}"
