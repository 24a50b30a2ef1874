"""The command line: typer and the terminal, and nothing else."""
