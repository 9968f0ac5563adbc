"""The recipes that come with the package, made small enough to run in a test."""

from rayfed_ssl.config.schema import Config

SMALL = (
    "data={name: digits, train_limit: 240, test_limit: 40}",
    "model.encoder=cnn",
    "training={epochs: 1, batch: 16}",
    "evaluation={every: 0, linear: {epochs: 1}}",
    "engine={executor: local, device: cpu, precision: fp32}",
)
SMALLER: dict[str, tuple[str, ...]] = {
    "fedca": ("method.align_epochs=1",),
    "orchestra": ("objective={name: orchestra, clusters: 8, local_clusters: 4, memory: 8}", "method.global_steps=20"),
    **dict.fromkeys(("fedmae", "fedmar"), ("model.encoder=vit-micro",)),
    "feddc": ("objective.clusters=4",),
    "fedswav": ("objective.prototypes=4",),
    **{f"fedfoa{base}": ("method.warm_up=1",) for base in ("", "-fedbyol", "-fedu", "-fedema")},
}
FLESD = ("method.queue_size=16", "method.distil_batch=8", "method.distil_epochs=1")


def small(name: str, *settings: str) -> Config:
    """Load a recipe for a few digits and two rounds; `settings` are further overrides."""
    config = Config.load(name)
    smaller = FLESD if config.method_name.startswith("flesd") else SMALLER.get(name, ())
    return Config.load(name, *SMALL, f"rounds={min(config.rounds, 2)}", *smaller, *settings)
