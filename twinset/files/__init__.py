"""Files, processes' signals and the environment. Knows no content."""
