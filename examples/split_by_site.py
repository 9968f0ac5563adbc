"""Pictures by site, as hospitals have them, with one site whose scanner shows everything inverted.

python -m examples.split_by_site scans
rayfed-ssl run fedsimclr data.name=folder data.path=scans "partition={name: column, column: site}" clients.number=5 \
  clients.test_fraction=0.25
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.image_store import ImageSet

SITES = ("berlin", "cairo", "lima", "oslo", "tokyo-inverted")
"""Sites in ascending order, which become clients 0 to 4; pictures of the last one are inverted."""


def write(folder: Path, data: ImageSet, rows: np.ndarray, *, inverted: bool = False) -> None:
    """Write rows of a set as folder/CLASS/ROW.png."""
    for row in rows:
        pixels, name = data.images[row], data.classes[data.labels[row]]
        pixels = 255 - pixels if inverted else pixels
        (folder / name).mkdir(parents=True, exist_ok=True)
        picture = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(picture)).save(folder / name / f"{row:05d}.png")


def main(
    out: Annotated[Path, typer.Argument(help="Directory for train/SITE/CLASS and test/CLASS; must be new.")],
    dataset: str = "digits",
    path: Path | None = None,
    size: int | None = None,
    train: int = 1250,
    test: int = 300,
) -> None:
    """Divide a dataset's training pictures evenly over the sites."""
    data = open_dataset(dataset, path=path, size=size, train_limit=train, test_limit=test)
    out.mkdir(parents=True)
    order = np.random.default_rng(0).permutation(len(data.train))
    for site, rows in zip(SITES, np.array_split(order, len(SITES)), strict=True):
        write(out / "train" / site, data.train, rows, inverted=site.endswith("inverted"))
    write(out / "test", data.test, np.arange(len(data.test)))


if __name__ == "__main__":
    typer.run(main)
