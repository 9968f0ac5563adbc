"""Files that a report reads, made up, and directories that hold them."""

import json
import shutil
from pathlib import Path
from typing import Any

DIAGNOSTICS: dict[str, Any] = {
    "round": 2,
    "method": "local",
    "seed": 0,
    "samples": 60,
    "split": "test",
    "encoders": {"client-0": {"architecture": "cnn", "effective_rank": 3.5}, "client-1": {"effective_rank": None}},
    "matrices": {
        "cka": {
            "title": "linear CKA",
            "unit": "",
            "range": [0, 1],
            "encoders": ["client-0", "client-1"],
            "clients": [0, 1],
            "values": [[1.0, None], [None, 1.0]],
        }
    },
    "false_negatives": {"clients": [0, 2], "local": [0.5, 0.25], "fused": [0.25, 0.125], "remote": None},
    "notes": ["a pair differs in width"],
}


def _trial(number: int, label: str, run: str, state: str, reason: str, values: dict[str, Any]) -> dict[str, Any]:
    common = {"number": number, "label": label, "state": state, "reason": reason, "seeds": [0, 1], "runs": [run]}
    return common | {"point": {"system": label}, "reached": 2, "rounds": 2, "bytes": 1_500_000.0, "values": values}


VALUES = {
    "linear": {"mean": 0.75, "std": 0.01, "each": [0.75, 0.75]},
    "bytes": {"mean": 1_500_000.0, "std": 0.0, "each": [1_500_000.0, 1_500_000.0]},
}

RESULTS: dict[str, Any] = {
    "name": "mine",
    "started": "2026-01-01T00:00:00+00:00",
    "selection": "validation",
    "seeds": [0, 1],
    "title": "A <sweep>",
    "source": "FLESD, Figure 4",
    "notes": ["A note."],
    "command": "rayfed-ssl sweep mine.yaml",
    "finished": None,
    "trials": [
        _trial(0, "system=FLESD", "runs/flesd-0", "complete", "", VALUES),
        _trial(1, "system=Local", "runs/local-0", "failed", "its process died", {}),
    ],
    "tables": [
        {
            "goal": "linear",
            "title": "linear (%), more is better",
            "head": ["system", "linear (%)"],
            "lines": [
                [{"text": "FLESD"}, {"text": "75.00 ± 1.00", "mean": 0.75, "best": True}],
                [{"text": "Local"}, {"text": "failed"}],
            ],
            "remarks": ["Each cell is the best."],
        }
    ],
    "details": [
        {
            "title": "All trials",
            "head": ["trial", "state"],
            "lines": [
                [{"text": "0: system=FLESD"}, {"text": "complete"}],
                [{"text": "1: system=Local"}, {"text": "failed"}],
            ],
        }
    ],
    "best": 0,
    "front": [0],
    "remarks": [
        "Settings are chosen by 12 held-out training samples.",
        "Failed, trial 1 (system=Local): its process died",
    ],
    "figures": ["figures/linear-over-rounds.png", "figures/linear-over-rounds.svg", "figures/trade-off.svg"],
}


def study_in(folder: Path, content: object = RESULTS) -> Path:
    """Make a study's directory without runs."""
    (folder / "figures").mkdir(parents=True)
    (folder / "study.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps(content))
    (folder / "figures" / "linear-over-rounds.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200"/>'
    )
    (folder / "figures" / "linear-over-rounds.png").write_bytes(b"PNG")
    return folder


def with_runs(folder: Path, finished: Path) -> Path:
    """Copy the finished runs that `RESULTS` names into a directory."""
    for name in ("flesd-0", "local-0"):
        shutil.copytree(finished / name, folder / "runs" / name)
    return folder
