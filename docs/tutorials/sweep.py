# %% [markdown]
# # A sweep and its Pareto front
#
# More rounds cost more bytes. How much accuracy do they buy? A sweep runs one experiment over many settings; with
# two goals it gives the settings that no other one beats in both, the Pareto front.

# %%
import subprocess
from pathlib import Path

from IPython.display import Image

Path("rounds.yaml").write_text("""
title: Accuracy against bytes, over rounds and methods
set:
  data: {name: digits, validation: 0.25}
  clients.number: 4
  training: {epochs: 2, batch: 64}
  evaluation: {every: 0}
rows:
  FLESD: {recipe: flesd, set: {method.distil_epochs: 5}}
  FedAvg: {recipe: fedsimclr}
space:
  rounds: [1, 3]
maximize: knn
minimize: bytes_up
table: {rows: row, columns: rounds}
""")


def rayfed_ssl(*words: str) -> str:
    """Run the program; in a terminal or a cell of its own it is `rayfed-ssl ...`."""
    return subprocess.run(["rayfed-ssl", *words], check=True, capture_output=True, text=True).stdout


# %% [markdown]
# The settings are chosen on held-out training samples (`data.validation`), so that no label of the test set
# decides anything. Trials run side by side on Ray; the table does not depend on how many.

# %%
print(rayfed_ssl("sweep", "rounds.yaml", "--out", "runs/sweep"))

# %% [markdown]
# ## What it leaves

# %% mystnb={"image": {"alt": "kNN over bytes sent up: on the Pareto front, FLESD sends least, FedAvg scores highest"}}
print(sorted(file.name for file in Path("runs/sweep").iterdir() if file.is_file()))
Image("runs/sweep/figures/trade-off.png")

# %% [markdown]
# Each point of the front is a recipe, ready to run on all training samples and to be measured on the test set
# once: `rayfed-ssl run runs/sweep/pareto-0.yaml`, for example.
