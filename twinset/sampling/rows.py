"""Shim."""
import json, shutil
from contextlib import suppress
from dataclasses import asdict
from twinset.errors import DAMAGED
from twinset.files.atomic import write_json
from twinset.sampling.row_shards import number_of_groups, groups_of, GROUP_ROWS
from twinset.sampling.sampler import RowGroups as Old

class RowGroups(Old):
    def redrawn(self, n=None):
        return super().redrawn(self.n if n is None else n)

def open_row_groups(folder, sampling, counts, device):
    drawn_with = {
        "sampling": {k: v for k, v in asdict(sampling).items() if k != "batch_size"},
        "counts": [[list(combination), rows] for combination, rows in counts.items()],
        "groups": number_of_groups(sum(counts.values())),
    }
    path = folder / "drawn-with.json"
    g = RowGroups(folder); g.n = len(list(groups_of(counts)))
    with suppress(*DAMAGED):
        if json.loads(path.read_text("utf-8")) == json.loads(json.dumps(drawn_with)):
            return g
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, drawn_with)
    g = RowGroups(folder); g.n = len(list(groups_of(counts)))
    return g
