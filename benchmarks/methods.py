"""Every method in small, on real photographs: tables of accuracy, losses, bytes and seconds.

    uv run python benchmarks/methods.py --data ../shared/data/cifar10 --out runs/methods [--tables all ...] [--seeds 0 1]
        [--set rounds=24]

Each row is a recipe at one common size (`SIZE`), with `--set` changed for all. Runs are independent processes of one
core, as many at once as `--jobs`; a run that is there already is not repeated.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rayfed_ssl.analysis.rescoring import rescore
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, summarize

SIZE = [
    "data.train_limit=5000",
    "data.test_limit=5000",
    "data.size=24",
    "clients.number=5",
    "rounds=8",
    "training.epochs=4",
    "training.batch=64",
    "training.views=orchestra",
    "evaluation={every: 0, linear: {standardize: true}}",
]
SPLITS = {
    "IID": ["partition={name: iid}"],
    "2 classes": ["partition={name: classes_per_client, classes: 2}"],
}
LONGEST_NAME = 200
"""Letters of a run's directory; longer names end in a digest."""
NON_IID = {"2 classes": SPLITS["2 classes"]}
POOLED = ["partition={name: pooled}", "rounds=1", "training.epochs=32"]
MIXED = [
    "clients.number=4",
    "clients.models=[resnet18, vgg9, alexnet, resnet34]",
    "model.encoder=resnet18",
    "data.train_limit=2000",
    "rounds=3",
    "training.batch=32",
    "partition={name: iid}",
    "objective.projector=linear",  # FedFoA's calibration layer
]

Rows = Mapping[str, Sequence[str]]
TABLES: dict[str, tuple[Rows, Mapping[str, Sequence[str]]]] = {
    "all": (
        {
            "SimCLR, centralized": ["simclr-centralized", *POOLED],
            "MoCo, centralized": ["moco-centralized", *POOLED],
            "FedAvg, supervised": ["fedavg-supervised"],
            "SimCLR, local": ["simclr-local"],
            "BYOL, local": ["byol-local"],
            "FedSimCLR": ["fedsimclr"],
            "FedProx": ["fedprox"],
            "FedMoCo": ["fedmoco"],
            "FedBYOL": ["fedbyol"],
            "FedSimSiam": ["fedsimsiam"],
            "FedSwAV": ["fedswav"],
            "FedDC": ["feddc"],
            "FedRot": ["fedrot"],
            "FedPR": ["fedpr"],
            "FedAE": ["fedae"],
            "FLESD": ["flesd", "objective.temperature=0.2"],
            "FedCA": ["fedca"],
            "FCL": ["fcl"],
            "FedU": ["fedu"],
            "FedEMA": ["fedema"],
            "FedFoA (alone)": ["fedfoa"],
            "FedMD": ["fedmd"],
            "FedDF": ["feddf"],
            "Orchestra": ["orchestra"],
            "L-DAWA": ["ldawa"],
            "FedX": ["fedx"],
            "FedU2": ["fedu2"],
            "FedAlignUniform": ["fedalignuniform"],
            "SSD": ["ssd"],
            "FedSC": ["fedsc"],
        },
        SPLITS,
    ),
    "fedca": (
        {
            "FedSimCLR": ["fedca", "method.dictionary=false", "method.beta=0", "public=null"],
            "+ alignment": ["fedca", "method.dictionary=false"],
            "+ dictionary, no ensembling": ["fedca", "method.beta=0", "method.ensembling=0", "public=null"],
            "+ dictionary": ["fedca", "method.beta=0", "public=null"],
            "FedCA": ["fedca"],
        },
        NON_IID,
    ),
    "fcl": (
        {
            "CL": ["fcl", "method.fusion=false", "method.neighborhood=0"],
            "CL + FF": ["fcl", "method.neighborhood=0"],
            "CL + FF + NM (FCL)": ["fcl"],
        },
        NON_IID,
    ),
    "fedfoa": (
        {
            "FedBYOL": ["fedbyol"],
            "FedBYOL + FedFoA": ["fedfoa-fedbyol"],
            "FedU": ["fedu"],
            "FedU + FedFoA": ["fedfoa-fedu"],
            "FedEMA": ["fedema"],
            "FedEMA + FedFoA": ["fedfoa-fedema"],
        },
        {"IID": SPLITS["IID"]},
    ),
    "mixed": (
        {
            "BYOL, local": ["byol-local", *MIXED],
            "FedMD": ["fedmd", *MIXED],
            "FedDF": ["feddf", *MIXED],
            "FedFoA": ["fedfoa", *MIXED, "method.warm_up=1"],
        },
        {"ResNet-18, VGG-9, AlexNet, ResNet-34": []},
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run: a row of a table, a split of the data, a seed."""

    table: str
    row: str
    split: str
    seed: int
    changes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Recipe and settings."""
        rows, splits = TABLES[self.table]
        recipe, *settings = rows[self.row]
        return [recipe, *SIZE, *splits[self.split], *settings, *self.changes, f"seed={self.seed}"]

    def directory(self, out: Path) -> Path:
        """Name the run for what decides it, so that two tables share it and no pooled run is made twice."""
        split = "" if "partition={name: pooled}" in self.words else self.split
        name = "_".join([*TABLES[self.table][0][self.row], split, *self.changes, str(self.seed)]).lower()
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
        digest = hashlib.sha256(" ".join(self.words).encode()).hexdigest()[:10]
        return out / (name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 11]}-{digest}")


def start(data: Path, out: Path, cell: Cell) -> None:
    """Run one cell in a process of its own."""
    target = cell.directory(out)
    if (target / "encoders").exists():
        return
    recipe, *words = cell.words
    where = ["data.name=parquet", f"data.path={data}", "engine.executor=local"]
    command = [sys.executable, "-m", "tune.cli", "run", recipe, "-q", "--out", str(target), *where, *words]
    with (out / f"{target.name}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=False)
    print(f"done: {target.name}", file=sys.stderr, flush=True)


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", default=["all"], choices=list(TABLES))
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--splits", nargs="+", help="only these splits")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="+", default=[], help="settings of all rows, over their own")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = [
        Cell(table, row, split, seed, tuple(options.set))
        for table in options.tables
        for seed in options.seeds
        for split in TABLES[table][1]
        if not options.splits or split in options.splits
        for row in TABLES[table][0]
        if not options.rows or row in options.rows
    ]
    unique = list({cell.directory(options.out): cell for cell in cells}.values())
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda cell: start(options.data, options.out, cell), unique))
    for table in options.tables:
        print(f"\n### {table}\n")
        print_table(options.out, [cell for cell in cells if cell.table == table])


def print_table(out: Path, cells: Sequence[Cell]) -> None:
    """Print a row for each method and split: scores as mean and spread over seeds, losses, bytes, seconds."""
    print("| | split | linear | kNN | loss first, last | up, down a round and client (kB) | s |")
    print("|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str], list[Path]] = {}
    for cell in cells:
        directory = cell.directory(out)
        if (directory / "encoders").exists():
            groups.setdefault((cell.row, cell.split), []).append(directory)
    for (row, split), found in groups.items():
        runs = [summarize(RunRecord.open(directory)) for directory in found]
        first, last = losses(found[0])
        where = "one client" if runs[0].num_clients == 1 else split
        up, down = (
            size / runs[0].num_clients / runs[0].rounds / 1e3 for size in (runs[0].bytes_up, runs[0].bytes_down)
        )
        print(
            f"| {row} | {where} | {accuracy(runs, 'linear')} | {accuracy(runs, 'knn')} | {first:.3f}, {last:.3f} "
            f"| {up:,.0f}, {down:,.0f} | {fmean(run.seconds for run in runs):.0f} |"
        )
    if groups:
        scores = rescore(next(iter(groups.values()))[0], initial=True)[0].metrics
        print(f"| random encoder | | {100 * scores['linear']:.2f} | {100 * scores['knn']:.2f} | | | |")


def accuracy(runs: Sequence[Summary], score: str) -> str:
    """Give accuracies in percent: the global encoder's, or the mean over clients with every client's."""
    values = [100 * (run.headline(score) or 0) for run in runs]
    text = f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
    own = {name: metrics[score] for name, metrics in runs[0].scores.items() if name != "global"}
    if own and "global" not in runs[0].scores:
        text += f" ({', '.join(f'{100 * value:.1f}' for _, value in sorted(own.items()))})"
    return text


def losses(directory: Path) -> tuple[float, float]:
    """Give the clients' mean loss in the first epoch of the first round and in the last epoch of the last."""
    rows = RunRecord.open(directory).metrics
    with_loss = [row["round"] for row in rows if row["name"] == "loss"]  # Orchestra's first round trains nothing
    return (
        fmean(row["value"] for row in rows if row["name"] == "loss_first" and row["round"] == min(with_loss)),
        fmean(row["value"] for row in rows if row["name"] == "loss" and row["round"] == max(with_loss)),
    )


if __name__ == "__main__":
    main()
