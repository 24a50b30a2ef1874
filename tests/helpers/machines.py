"""Machines of any speed, for plans that follow from it."""

from twinset.run import plan_in_time
from twinset.run.estimate import Speed

READ_SHARE = 0.4  # of a record's seconds: what the teacher reads its text in


def machine_of(monkeypatch, record: float, row: float = 0.0) -> None:
    """Have a machine measured that takes so many seconds a token of a record, and of a row."""

    def timed(base, config, plan, tokens, records_each=1.0, say=None):
        seconds = (record * tokens, 0.0, 0.0, row * tokens)
        read = READ_SHARE * record * tokens if config.privacy.teacher_share else 0.0
        return Speed(config, tokens, tokens, records_each, 1, *seconds, 1.0, read, read)

    monkeypatch.setattr(plan_in_time, "measure", timed)
    monkeypatch.setattr(plan_in_time, "SLOWEST", 1.0)  # so that it is measured at all
    monkeypatch.setattr(plan_in_time, "FEWEST_VISITS", 64)
