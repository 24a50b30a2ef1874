"""What a terminal shows of the budget that is spent."""

import io

from rich.console import Console as RichConsole

from twinset.commandline.console import Console
from twinset.config.options import run_config
from twinset.config.plan import make_plan
from twinset.progress import StepReport


def test_a_resumed_run_shows_what_was_spent_before():
    plan = make_plan(1000, run_config({"steps": 100, "batch_size": 50}))
    resumed = Console()
    resumed._out = RichConsole(file=io.StringIO(), force_terminal=False, width=200)
    resumed.step(StepReport(50, 50, 4.0, 0.5, 0, 1.0, 1), plan)
    assert f"| eps {plan.epsilon_after(50):.2f}/8.00 |" in resumed._out.file.getvalue()
