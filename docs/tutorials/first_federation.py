# %% [markdown]
# # First federation
#
# Five clients hold unlabeled handwritten digits, unequally divided, and learn one encoder together. You run it,
# look at what it learned and at what it sent, and write the report.

# %%
from pathlib import Path

from IPython.display import Image

from rayfed_ssl import Config, run
from rayfed_ssl.reports.html import write_report

config = Config.load("fedsimclr", "rounds=3", "training.epochs=2", "partition.alpha=0.3", "evaluation.every=1")
print(config.system, config.rounds, "rounds of", config.epochs, "epochs,", config.clients.number, "clients")

# %% [markdown]
# A configuration is a recipe, here `fedsimclr` (FedAvg with SimCLR), and changes of its keys. `run` trains in
# this process; `from actors import run` does the same on Ray actors, to the same bits.

# %%
result = run(config, "runs/first")
print(result.state_sha256)
for name, value in result.scores["global"].items():
    print(f"{name:12} {100 * value:.1f} %")

# %% [markdown]
# `linear` is the accuracy of a linear probe on the frozen encoder, `knn` that of its nearest neighbors. Labels
# are used for these alone. A score means something beside that of the random encoder from which the run started:

# %%
for encoder, scores in result.record.manifest.starts.items():
    print(encoder, {name: round(value, 3) for name, value in scores.items() if name in ("knn", "linear")})

# %% [markdown]
# ## What a client sent
#
# The ledger counts every byte that crosses a client's boundary, by kind.

# %%
print(f"{result.bytes('up') / 1e6:.1f} MB up, {result.bytes('down') / 1e6:.1f} MB down")
for row in result.record.ledger[:4]:
    print(row)

# %% [markdown]
# ## The report
#
# One HTML file with all figures, tables and settings. Open it in a browser.

# %%
report = write_report([Path("runs/first")], Path("report.html"))
print(report, f"{report.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# Its figures lie beside it. Who holds which digits, and how the losses went:

# %% mystnb={"image": {"alt": "Samples by client and class: each client has few of some digits and many of others"}}
Image("report-figures/first-partition.png")

# %% mystnb={"image": {"alt": "Losses fall over three rounds"}}
Image("report-figures/first-losses.png")
