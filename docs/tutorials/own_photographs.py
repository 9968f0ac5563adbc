# %% [markdown]
# # Own photographs
#
# A dataset is a directory with one directory for each class. Here 600 digits are written as PNG files in place of
# your photographs: skip the next cell and name your own directory.

# %%
from pathlib import Path

import PIL.Image
import torch
from IPython.display import Image
from sklearn.datasets import load_digits

from rayfed_ssl import Config, run
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.reports.figures import draw_partition

# %%
digits = load_digits()
for number, (pixels, label) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
    path = Path("photographs", f"digit-{label}", f"{number}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray((pixels * 15.9).astype("uint8")).resize((24, 20)).save(path)

print(len(list(Path("photographs").rglob("*.png"))), "files, such as", path)

# %% [markdown]
# `data.size` is the side in pixels to which each picture is fitted. A fifth of each class is held out to test on,
# as there is no `test` directory. On the command line it is `rayfed-ssl run fedsimclr data.name=folder
# data.path=photographs data.size=16`.

# %% mystnb={"image": {"alt": "Samples by client and class: each of four clients lacks some of the ten folders"}}
config = Config.load(
    "fedsimclr",
    *("data.name=folder", "data.path=photographs", "data.size=16"),
    *("clients.number=4", "partition.alpha=0.3", "rounds=2", "training.epochs=2"),
)
federation = Federation.open(config)
print({client: len(rows) for client, rows in federation.shards.items()}, federation.skew.text)
Image(draw_partition(federation, Path("partition.png")))

# %% [markdown]
# Self-supervised methods see no class; classes serve this picture, the division among clients and the probes.

# %%
result = run(config, "runs/photographs")
print({name: round(value, 3) for name, value in result.scores["global"].items()})

# %% [markdown]
# ## Use the encoder
#
# `result.encoder()` is a torch module with the normalization that it was trained with; `rayfed-ssl export runs/photographs
# encoder.safetensors` writes it to a file for other programs.

# %%
encoder = result.encoder()
images = torch.tensor(federation.dataset.test.images[:8])
with torch.inference_mode():
    features = encoder(encoder.normalize(images))
print(images.shape, "->", features.shape)
