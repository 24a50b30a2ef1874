import io
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from evaluated import REDRAWS
from rich.console import Console

from evaluation import demo
from twinset.config import SamplingConfig


@pytest.mark.slow
def test_demo(tiny_base, tmp_path, monkeypatch):
    """The demo's whole story, with a tiny model and little of everything."""
    little = {
        "MAX_TOKENS": 8,
        "TRAINING": replace(demo.TRAINING, steps=2, batch_size=16, max_tokens=8),
        "ROWS_PER_LABEL": 12,
        "REAL_ROWS": 100,
        "HELD_OUT_ROWS": 100,
    }
    for name, value in little.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "SamplingConfig", partial(SamplingConfig, max_redraws=REDRAWS))
    report = demo.run_demo(tmp_path / "run", base_model=str(tiny_base))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report)
    shown = console.export_text()
    for expected in ("8.00", "1e-05", "real", "no private data", "share", "internal"):
        assert expected in shown
    assert len(report.samples) == 3
    for name in ("evaluation.json", "report.html"):
        assert (tmp_path / "run" / "internal" / name).is_file()
    assert pd.read_parquet(tmp_path / "run" / "share" / "twin.parquet").shape == (24, 2)
