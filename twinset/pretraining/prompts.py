"""A prompt that documents of a corpus are written behind: of some files, or of fitting tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from twinset.errors import InputError
from twinset.table.templates import placeholders

_OF_FILES = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Args:
        start: beginning of the names of its files; "": any table that has its columns.
        pattern: the prompt, with `{column}` where a value goes.
    """

    start: str
    pattern: str

    @classmethod
    def parse(cls, given: str) -> Prompt:
        """Read `START=PROMPT`, or a prompt alone, which names a column.

        >>> Prompt.parse("cars=Write about a car:")
        Prompt(start='cars', pattern='Write about a car:')
        >>> Prompt.parse("Write a {mood} review:").start
        ''

        Raises:
            InputError: neither.
        """
        if found := _OF_FILES.fullmatch(given):
            return cls(found[1], found[2])
        if not placeholders(given):
            raise InputError(
                "`prompt` names no {column} of the tables; for one without, say of which files: "
                "START=PROMPT, with the beginning of their names"
            )
        return cls("", given)

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        return placeholders(self.pattern)


def prompt_of(file: str, columns: Collection[str], prompts: Iterable[Prompt]) -> Prompt | None:
    """Return a file's prompt: one for files of such names goes before one for any table.

    Raises:
        InputError: the file has not all columns of a prompt for files of such names.
    """
    for prompt in sorted(prompts, key=lambda one: -len(one.start)):
        missing = [name for name in prompt.columns if name not in columns]
        if prompt.start and file.startswith(prompt.start):
            if missing:
                raise InputError(f"{file}: has no column {missing[0]!r}, which its `prompt` names")
            return prompt
        if not prompt.start and not missing:
            return prompt
    return None
