"""Prompt templates: from a label combination to the prompt that asks the model for its text.

Built-in templates are the TOML files of the `prompts` package. A user's is such a file or the
prompt itself. Knows the schema (columns and their public values), but no record, token or model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinset.errors import InputError
from twinset.files.import_path import find_folder
from twinset.table.schema import Combination, Schema, plain, read_toml

GENERIC, _ALL = "generic", " with {attributes}"  # which means all of a table's columns

# A placeholder is a column name between braces, looked up as it stands. `str.format` is never used:
# its attribute access, indices and conversions have no meaning here, and column names may hold any
# of their characters ("star rating", "star.rating").
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")

MOST_PROMPT = 10_000  # characters
_KEYS = {"description", "prompt", "wording", "example_values"}
KINDS = "kinds.txt"  # of text, a line each: the first is what the generic template asks for

Words = Mapping[str, str]


@dataclass(frozen=True)
class PromptFile:
    """A template as written, before it is fitted to a table."""

    name: str  # the built-in's name, the file, or "`prompt`"
    pattern: str  # the prompt, with `{column}` as placeholders
    # By attribute, either the words for single values (each value must exist in the table), or a
    # list of scales, of which the first that fits the table's values is used.
    wording: Mapping[str, Words | Sequence[Words]] = field(default_factory=dict)
    example_values: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by attribute


@dataclass(frozen=True)
class Template:
    """A prompt template that fits one schema. Every combination has its own prompt."""

    name: str  # its source
    pattern: str  # the prompt, with `{column}` as placeholders
    wording: Mapping[str, Words]  # words for each attribute and plain value
    attributes: tuple[str, ...]  # names of the label columns, in the schema's order

    def render(self, combination: Combination) -> str:
        """Return the prompt of one label combination, with values in the order of `attributes`."""
        words = {
            name: self.wording.get(name, {}).get(plain(value), plain(value))
            for name, value in zip(self.attributes, combination, strict=True)
        }
        # a few placeholders of long values come to gigabytes, so they are counted first
        named = PLACEHOLDER.findall(self.pattern)
        size = len(self.pattern) + sum(len(plain(words[name])) - len(name) - 2 for name in named)
        if size > MOST_PROMPT:
            raise InputError(
                f"prompts exceed {MOST_PROMPT} characters with their labels. Cut them."
            )
        return fill(self.pattern, words)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Template:
        """Rebuild a template from the result of `asdict`, in JSON or not."""
        return cls(data["name"], data["pattern"], data["wording"], tuple(data["attributes"]))


def builtin_templates() -> dict[str, PromptFile]:
    """Return the templates that come with twinset, by name."""
    files = sorted(Path(find_folder("prompts")).glob("*.toml"))
    return {file.stem: _parse(file.stem, file) for file in files}


def kinds_of_text() -> list[str]:
    """Return the kinds of text that a run can ask for without a given prompt, "a text" first."""
    return Path(find_folder("prompts"), KINDS).read_text("utf-8").splitlines()


def written_template(source: Template | str | Path | None) -> PromptFile:
    """Return a template as written, before it is fitted to a table. See `load_template`.

    A `Template` is already fitted. Its words belong to that table's values and declare none.
    """
    if isinstance(source, Template):
        return PromptFile(source.name, source.pattern)
    builtins, name = builtin_templates(), GENERIC if source is None else str(source)
    if name in builtins:
        return builtins[name]
    if name.endswith(".toml"):
        return _parse(name, Path(name))
    if "{" in name:
        return PromptFile("`prompt`", name)
    shown = " ".join(name.split())[:60]
    raise InputError(
        f"`prompt={shown}`: not known. Name a built-in template ({', '.join(builtins)}) or a .toml "
        'file, or write a prompt with a {column}, such as "Write a {sentiment} review:"'
    )


def _parse(name: str, file: Path) -> PromptFile:
    data = read_toml(file, name)
    prompt, wording = data.get("prompt"), data.get("wording", {})
    are_words = isinstance(wording, dict) and all(
        isinstance(words, dict) and all(isinstance(word, str) for word in words.values())
        for words in _scales(wording)
    )
    if data.keys() - _KEYS or not isinstance(prompt, str) or not are_words:
        raise InputError(
            f'{name}: not a template. Write prompt = "Write a {{stars}} text:", [wording.stars], '
            f'below it 1 = "very bad". Allowed keys are {", ".join(sorted(_KEYS))}.'
        )
    return PromptFile(name, prompt, wording, data.get("example_values", {}))


def _scales(wording: Mapping[str, Any]) -> list[Any]:
    """Return all scales of a template. Words for single values count as one scale."""
    lists = (words if isinstance(words, list) else [words] for words in wording.values())
    return [words for each in lists for words in each]


def load_template(source: PromptFile | str | Path | None, schema: Schema) -> Template:
    """Return the template that `source` names, or refuse it if it does not fit the schema.

    `source` is a built-in's name, a path ending in .toml, or the prompt itself (it has a brace).
    `None` is the generic template. White space at a prompt's end is dropped, because its last token
    must not be a lone space.
    """
    written = source if isinstance(source, PromptFile) else written_template(source)
    columns = [attribute.name for attribute in schema.attributes]
    name, pattern = written.name, fit_pattern(written, columns)
    words: dict[str, dict[str, str]] = {}
    for attribute in schema.attributes:
        meant = written.wording.get(attribute.name, {})
        values = list(map(plain, attribute.values))
        if not isinstance(meant, Mapping):  # scales, of which the first that fits is used
            scale = fitting_words(meant, set(values))
            meant = {key: word for key, word in scale.items() if key in values}
        for unknown in (value for value in meant if value not in values):
            raise InputError(
                f"{name}: wording for {attribute.name} = {unknown!r}, a value the table "
                f"does not have. Its values are {', '.join(values)}."
            )
        if meant:
            words[attribute.name] = dict(meant)
    # its name is saved and shown in shared files: no path of this machine
    template = Template(Path(name).name, pattern, words, tuple(columns))
    first: dict[str, Combination] = {}  # two combinations that the model could not tell apart
    for combination in schema.combinations:
        prompt = template.render(combination)
        twin = first.setdefault(prompt, combination)
        if twin is not combination:
            raise InputError(
                f"{template.name}: {twin} and {combination} have the same prompt. Give them "
                "different wording."
            )
    return template


def fit_pattern(written: PromptFile, columns: Sequence[str]) -> str:
    """Return a template's prompt for these label columns, or refuse it. No values are known yet."""
    # the generic one becomes "Write a text with sentiment: {sentiment} and product: {product}:"
    listed = " with " + " and ".join(f"{name}: {{{name}}}" for name in columns) if columns else ""
    name, pattern = written.name, written.pattern.rstrip()
    if name == GENERIC:
        pattern = pattern.replace(_ALL, listed)
    if unclear := [column for column in columns if not column or set(column) & set("{}")]:
        fault = "a brace" if unclear[0] else "a column without a name"
        raise InputError(f"column {unclear[0]!r}: a prompt cannot name {fault}. Rename the column.")
    if set(PLACEHOLDER.sub("", pattern)) & set("{}"):
        raise InputError(f"{name}: a brace is open, empty or nested. Write {{column}} for a value.")
    named, has = placeholders(pattern), f"(the table has: {', '.join(columns) or 'none'})"
    for unknown in (each for each in (*named, *written.wording) if each not in columns):
        raise InputError(
            f"{name}: names {{{unknown}}}, which is not an attribute {has}. Add it to "
            "`attributes`, or write a `prompt` of your own."
        )
    for missing in (column for column in columns if column not in named):
        usual = written_template(GENERIC).pattern.replace(_ALL, listed)
        raise InputError(
            f"{name}: the prompt lacks the attribute {{{missing}}}. Write your own, such as "
            f'`prompt="{usual}"`.'
        )
    return pattern


def fitting_words(words: Words | Sequence[Words], values: set[str]) -> Words:
    """Return a template's words for a table with these values, or {} if none fit.

    Words for single values must cover all of them. So must a scale, and both its ends must occur:
    the 1 of a table of 0 and 1 is its best value, the 1 of a table of 1 to 5 its worst.
    """
    if isinstance(words, Mapping):
        return words if values <= set(words) else {}
    for scale in words:
        keys = list(scale)
        if values <= set(keys) and {keys[0], keys[-1]} <= values:
            return scale
    return {}


def candidate_templates(schema: Schema) -> list[Template]:
    """Return the public templates that a run may choose from, the generic one first.

    The generic template asks for every kind of text that it knows. Built-in ones fit by the names
    of the label columns. If none does, and there is one label column, they fit by its values.
    """
    generic, kinds = written_template(GENERIC), kinds_of_text()
    named = [attribute.name for attribute in schema.attributes]
    files = [file for name, file in builtin_templates().items() if name != GENERIC]
    fitting = [file for file in files if set(placeholders(file.pattern)) == set(named)]
    if not fitting and len(named) == 1:
        values = {plain(value).lower() for value in schema.attributes[0].values}
        for file in files:
            words = [set(dict(scale).values()) for scale in _scales(file.wording)]
            known = words or [set(each) for each in file.example_values.values()]
            if len(placeholders(file.pattern)) == 1 and values in known:  # read well unchanged
                own = PLACEHOLDER.sub(f"{{{named[0]}}}", file.pattern)
                fitting.append(PromptFile("`prompt`", own))
    written = [replace(generic, pattern=generic.pattern.replace(kinds[0], k)) for k in kinds]
    found = []
    for each in (*written, *fitting):
        with suppress(InputError):  # its words do not fit these values, or it grows too long
            found.append(load_template(each, schema))
    return found


def wrong_combinations(
    combination: Combination,
    combinations: Sequence[Combination],
    count: int,
    rng: np.random.Generator,
) -> list[Combination]:
    """Return `count` combinations other than the given one, or all of them if there are fewer.

    They are drawn uniformly without replacement: the set Wᵢ of the prompt-mismatch loss.
    """
    others = [other for other in combinations if other != combination]
    if len(others) <= count:
        return others
    return [others[i] for i in rng.choice(len(others), size=count, replace=False)]


def placeholders(pattern: str) -> list[str]:
    """Return the columns that a prompt names."""
    return list(dict.fromkeys(PLACEHOLDER.findall(pattern)))


def fill(pattern: str, values: Mapping[str, Any]) -> str:
    """Return a prompt with its placeholders filled in.

    >>> fill("Write a {star rating} review:", {"star rating": 5.0, "text": "Good."})
    'Write a 5 review:'
    """
    return PLACEHOLDER.sub(lambda match: plain(values[match[1]]), pattern)
