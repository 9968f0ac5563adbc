"""run.json: rounds that were written before are written again as they are."""

from collections.abc import Callable

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.records.manifest import RoundEntry, RowCounts, RunManifest, describe


def test_rounds_are_written_as_they_are_at_every_save(open_tiny: Callable[..., Federation]):
    manifest = describe(open_tiny("fedavg"))
    for kept, sha256 in ((0, "a"), (1, "b"), (2, "c"), (1, "d"), (2, "e")):
        del manifest.rounds[kept:]
        rows = RowCounts(metrics=1, ledger=2)
        manifest.rounds.append(RoundEntry(round=kept + 1, cohort=[0], state_sha256=sha256, rows=rows, dropped=[]))
        for _ in range(2):
            assert RunManifest.model_validate_json(manifest.text()).model_dump() == manifest.model_dump()
            rows.metrics += 5
