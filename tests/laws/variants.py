"""Methods and variants that the laws are checked for, by readable name: arguments of `tiny`."""

from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES

MIXED = "clients.models=[cnn, vgg9, cnn]"  # vgg9 has dropout, so its steps draw from torch's global generator

BYOL = ("objective=byol", "objective.hidden=32")

HALF = ("clients.number=5", "clients.fraction=0.5", "rounds=3")

SMALL_CROPS = "training.small_crops=2"

MOCO = ("objective=moco", "objective.queue_size=50")  # no multiple of a batch

VIT = "encoder: vit-micro, projection_dim: 16"

VARIANTS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in METHODS},
    **{
        f"fedavg-{name}": ("fedavg", f"objective={name}")
        for name, kind in OBJECTIVES.items()
        if not kind.needs_labels and kind.belongs_to is None and name != "simclr"
    },
    "fedavg-local-batch-norm": ("fedavg", "method.parts.batch_norm=local"),
    "fedavg-half-of-the-clients": ("fedavg", *HALF),
    "fedavg-private": (
        "fedavg",
        "method.weighting=uniform",
        "privacy={clip: 1.0, noise: 0.05, clip_quantile: 0.5}",
        *HALF,
    ),
    "fedavg-private-samples": (
        "fedavg",
        "objective=supervised",
        "model={encoder: cnn-group, projection_dim: null}",
        "privacy={level: sample, clip: 1.0, noise: 0.05}",
    ),
    "fedavg-trimmed-mean": ("fedavg", "clients.number=4", "robust={name: trimmed-mean, before: nnm}"),
    "fedavg-krum-alie": ("fedavg", "clients.number=7", "robust=krum", "adversary=alie"),
    "flesd-permute": ("flesd", "adversary=permute"),
    "fedavg-bad-encoder": (
        "fedavg",
        "adversary={name: bad-encoder, clients: 2, parts: 2, tuning_epochs: 2, from_round: 2}",
    ),
    "flesd-ssl-backdoor": ("flesd", "adversary={name: ssl-backdoor, share: 1, size: 4}"),
    "fedsc-private": (
        "fedsc",
        "method.weighting=uniform",
        "privacy={clip: {weights: 1.0, correlation: 0.01}, noise: 0.05}",
        *HALF,
    ),
    "fedavg-supervised": ("fedavg", "objective=supervised", "model.projection_dim=null"),
    "fedavg-ntxent": ("fedavg", "objective.form=ntxent"),
    "fedavg-views-apart": ("fedavg", "objective.encode=apart"),
    # Random directions are told apart more easily than keys: a loss falls once the queue is full of keys, after many steps.
    "fedavg-moco": ("fedavg", "objective={name: moco, queue_size: 10}", "training.batch=4"),
    "fedavg-moco-averaged-target": (
        "fedavg",
        "objective={name: moco, queue_size: 10}",
        "training.batch=4",
        "method.parts.target=averaged",
        "method.parts.queue=reset",
    ),
    "fedavg-byol": ("fedavg", *BYOL),
    "fedavg-simsiam": ("fedavg", "objective={name: simsiam, hidden: 32, predictor_hidden: 12}"),
    "fedprox-local-batch-norm": ("fedprox", "method.parts.batch_norm=local", "method.mu=0.1"),
    "flesd-mixed-models": ("flesd", MIXED),
    "flesd-mixed-models-some-of-the-clients": (
        "flesd",
        MIXED,
        "clients.number=4",
        "clients.fraction=0.67",
        "public=client:2",
        "method.distil_batch=8",
        "rounds=3",
    ),
    "flesd-similarities": ("flesd", "method.upload=similarities"),
    "flesd-int8": ("flesd", "method.upload_format=int8"),
    "flesd-largest-similarities": (
        "flesd",
        "method.upload=similarities",
        "method.keep=0.2",
        "method.upload_format=fp16",
    ),
    "flesd-exclude-self": ("flesd", "method.exclude_self=true", "method.refill=epoch"),
    "local-mixed-models": ("local", MIXED),
    # A consensus of younger models than these draws VGG-9, which has no batch-norm, together.
    "fedmd-mixed-models": ("fedmd", MIXED, "training.epochs=4"),
    "fedmd-mixed-models-with-targets": ("fedmd", MIXED, *BYOL, "method.upload_format=int8"),
    "fedmd-some-of-the-clients": ("fedmd", *HALF),
    "feddf-mixed-models": ("feddf", MIXED, "rounds=3"),
    "feddf-mixed-models-with-local-predictors": (
        "feddf",
        "clients.models=[cnn, cnn5, cnn]",  # vgg9, which has no batch-norm, collapses under BYOL within these few steps
        *BYOL,
        "method.parts.predictor=local",
        "method.distance=cosine",
    ),
    "feddf-some-of-the-clients": ("feddf", MIXED, *HALF, "training.epochs=8"),
    "fedca-three-rounds": ("fedca", "rounds=3"),
    "fedca-dictionary-alone": ("fedca", "method.beta=0", "method.ensembling=0", "public=null"),
    "fedca-alignment-alone": ("fedca", "method.dictionary=false"),
    "fedca-some-of-the-clients": ("fedca", *HALF, "method.parts.batch_norm=local"),
    "fcl": ("fcl", *MOCO),
    "fcl-remote-negatives-alone": ("fcl", *MOCO, "method.negatives=remote", "method.neighborhood=0", "rounds=3"),
    "fcl-neither": ("fcl", *MOCO, "method.fusion=false", "method.neighborhood=0"),
    "fcl-some-of-the-clients": ("fcl", *MOCO, "objective.symmetric=false", "method.parts.target=local", *HALF),
    "fedu": ("fedu", *BYOL),
    "fedu-local-predictors": ("fedu", *BYOL, "method.threshold=0", "method.parts.batch_norm=local"),
    "fedema": ("fedema", *BYOL),
    "fedema-without-a-predictor": ("fedema",),
    "fedema-some-of-the-clients": (
        "fedema",
        *BYOL,
        "method.selective=true",
        "clients.number=4",
        "clients.fraction=0.67",
        "rounds=3",
    ),
    "fedavg-swav": ("fedavg", "objective=swav", "objective.prototypes=6", "training.batch=16"),
    "fedavg-swav-with-queues": (
        "fedavg",
        "objective=swav",
        "objective.prototypes=6",
        "objective.queue_size=20",
        "objective.queue_epoch=1",
        *HALF,
    ),
    "fedavg-deepcluster": ("fedavg", "objective=deepcluster", "objective.clusters=6"),
    "fedavg-rotation": ("fedavg", "objective=rotation", "model.projection_dim=null"),
    "fedavg-rotation-of-one-turn": ("fedavg", "objective={name: rotation, turns: one}", "model.projection_dim=null"),
    "fedavg-autoencoder": ("fedavg", "objective=autoencoder", "model.projection_dim=null"),
    "fedavg-mae": (
        "fedavg",
        "objective={name: mae, width: 32, depth: 1}",
        "model={encoder: vit-micro, projection_dim: null}",
    ),
    "fedavg-ntxent-small-crops": ("fedavg", "objective.form=ntxent", SMALL_CROPS),
    "fedavg-swav-small-crops": ("fedavg", "objective={name: swav, prototypes: 6}", "training.batch=16", SMALL_CROPS),
    "fedavg-lejepa-small-crops": ("fedavg", "objective=lejepa", SMALL_CROPS),
    "fedavg-dino-small-crops": (
        "fedavg",
        "objective={name: dino, hidden: 48, momentum: 0.9, koleo: 0.1}",
        "model.encoder=vit-micro",
        SMALL_CROPS,
    ),
    "fedavg-ibot": (
        "fedavg",
        "objective={name: ibot, hidden: 48, momentum: 0.9, mask_ratio: 0.5}",
        "model.encoder=vit-micro",
        SMALL_CROPS,
    ),
    "fedavg-dino": ("fedavg", "objective={name: dino, hidden: 48, momentum: 0.9}", "model.encoder=vit-micro", *HALF),
    "fedavg-lora": ("fedavg", f"model={{{VIT}, adapters: {{name: lora, rank: 4}}}}", *BYOL, *HALF),
    "fedavg-ffa": ("fedavg", f"model={{{VIT}, adapters: {{name: lora, aggregation: ffa, where: qkv}}}}", *BYOL),
    "fedavg-exact": ("fedavg", f"model={{{VIT}, adapters: {{name: lora, aggregation: exact}}}}", *BYOL, *HALF),
    "fedavg-local-b": ("fedavg", f"model={{{VIT}, adapters: lora}}", "method.parts.lora_b=local", *BYOL),
    "fedavg-svd": (
        "fedavg",
        f"model={{{VIT}, adapters: {{name: lora, aggregation: svd, ranks: [2, 4, 8], where: qkv}}}}",
        *BYOL,
        "method.parts.target=reset",
    ),
    "fedavg-norms-private": (
        "fedavg",
        f"model={{{VIT}, adapters: norms}}",
        "method.weighting=uniform",
        "privacy={clip: 1.0, noise: 0.01}",
        *BYOL,
    ),
    "local-bias": ("local", f"model={{{VIT}, adapters: bias}}", *BYOL),
    "orchestra-some-of-the-clients": ("orchestra", "clients.number=5", "clients.fraction=0.5", "rounds=4"),
    "ssd-local-batch-norm": ("ssd", "method.parts.batch_norm=local"),
    "fedsc-some-of-the-clients": ("fedsc", "method.noise=0.01", *HALF, "method.parts.batch_norm=local"),
    "ldawa-renormalized": ("ldawa", "method.warm_up=0", "method.renormalize=true"),
    "fedu2-byol": ("fedu2", *BYOL, "method.server_lr=0.5", "method.parts.batch_norm=local"),
    "fedu2-some-of-the-clients": ("fedu2", "method.max_steps=12", *HALF),
    "fedx-some-of-the-clients": ("fedx", "method.local_relation=0", "method.parts.predictor=local", *HALF),
    "fedfoa-mixed-models": ("fedfoa", MIXED, *BYOL, "objective.projector=linear"),
    "fedfoa-fedema": ("fedfoa", *BYOL, "method.base=fedema"),
    "fedfoa-fedavg-some-of-the-clients": ("fedfoa", "method.base=fedavg", "method.strength=0.1", *HALF),
}

DEFAULT = frozenset(METHODS) - {
    *("flesd-cc", "fedavg", "fedprox", "feddf", "fedca", "fedema", "ldawa", "ssd", "fedx", "fedu2", "fedfoa", "fedsc"),
    *("fcl", "local"),
}
"""What the default tier checks: similarities, projections, weights and clusters as messages, and every new method."""
