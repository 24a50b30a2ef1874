"""Machines of any speed, for plans that follow from it."""

from twinset.run import plan


def machine_of(monkeypatch, record: float) -> None:
    """Have a machine measured that takes so many seconds for each token of a record."""
    monkeypatch.setattr(
        plan, "measure_step", lambda base, config, plan, tokens, progress: (record * tokens, 0.0)
    )
    monkeypatch.setattr(plan, "SLOWEST", 1.0)  # so that it is measured at all
    monkeypatch.setattr(plan, "FEWEST_VISITS", 64)
