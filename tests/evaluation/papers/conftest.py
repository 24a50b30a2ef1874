"""Files of a study, as options of its command; made-up sentences."""

import numpy as np
import pytest

SUBJECTS = "dogs cats birds boats trains people children teachers".split()
VERBS = "like chase watch hear follow draw paint love".split()
PLACES = "here there everywhere outside inside downtown".split()


@pytest.fixture
def options_of(tmp_path):
    """A function of files, a text or table each by its option's name, and of further options."""

    def options(files, *more):
        found = []
        for name, content in files.items():
            path = tmp_path / f"{name}{'.txt' if isinstance(content, str) else '.csv'}"
            if isinstance(content, str):
                path.write_text(content)
            else:
                content.to_csv(path, index=False)
            found += [f"--{name}", str(path)]
        sizes = ["--size", "tiny", "--seeds", "1", "--output", str(tmp_path / "out")]
        return [*found, *map(str, more), *sizes]

    return options


@pytest.fixture(scope="session")
def sentences():
    """A function of how many, of a seed, and of a last word: a sentence a line."""

    def lines(count, seed, ending=""):
        rng = np.random.default_rng(seed)
        parts = (SUBJECTS, VERBS, SUBJECTS, PLACES, [ending])
        drawn = (" ".join(part[rng.integers(len(part))] for part in parts) for _ in range(count))
        return "\n".join(drawn)

    return lines
