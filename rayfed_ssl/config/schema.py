"""A run's configuration: sections of keys, a method and an objective, checked together."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rayfed_ssl.adversaries.adversary import UploadAdversary
from rayfed_ssl.clock.policies import FedBuff
from rayfed_ssl.config.choices import (
    ADVERSARY,
    CLOCK_DEVICES,
    CLOCK_POLICY,
    METHOD,
    MODEL_ADAPTERS,
    OBJECTIVE,
    OPTIMIZER,
    PARTITION,
    ROBUST,
    AdversaryField,
    MethodField,
    ObjectiveField,
    PartitionField,
    RuleField,
    Section,
    plain,
)
from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.config.recipes import LENGTHS, SCALAR_MEANS, Setting, flatten, parse_setting, read_recipe, set_value
from rayfed_ssl.config.sections import Clients, Clock, Data, Engine, Evaluation, ModelChoice, Training
from rayfed_ssl.config.strict import explain, fields, is_text
from rayfed_ssl.data.torch_datasets import keep
from rayfed_ssl.errors import ConfigError, is_utf8, nearest
from rayfed_ssl.foreign import plugins
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS
from rayfed_ssl.models.adapters import Lora
from rayfed_ssl.models.libraries import is_library
from rayfed_ssl.objectives import OBJECTIVES


class Config(Section):
    """A complete run."""

    seed: int = Field(0, ge=0)
    """Fixes every draw of the run."""
    rounds: int = Field(2, ge=1)
    """T."""
    method: MethodField
    """The federated method and its fields: one of `rayfed-ssl list methods`, or `module:Class`."""
    objective: ObjectiveField
    """The local objective and its fields: one of `rayfed-ssl list objectives`, or `module:Class`."""
    data: Data
    partition: PartitionField = Field({"name": "dirichlet"}, validate_default=True)
    """How training samples are divided over clients: one of `rayfed-ssl list partitions`, or `module:function`."""
    clients: Clients = Clients()
    public: str | None = None
    """Public data: "client:0"; "fraction:0.1", a tenth of each class, which clients then lack; or "stl10:3200"."""
    model: ModelChoice = ModelChoice()
    training: Training = Training()
    privacy: Privacy = Field(Privacy(), exclude_if=lambda privacy: privacy == Privacy())
    clock: Clock | None = Field(None, exclude_if=lambda clock: clock is None)
    """Virtual time (docs/clock.md); None runs rounds without one."""
    robust: RuleField = Field(None, exclude_if=lambda rule: rule is None)
    """A rule in the place of the mean of weights, and its fields (docs/robust.md): one of `rayfed-ssl list rules`, or
    `module:Class`.
    """
    adversary: AdversaryField = Field(None, exclude_if=lambda adversary: adversary is None)
    """Hostile clients, and what they do (docs/robust.md): one of `rayfed-ssl list adversaries`, or `module:Class`."""
    evaluation: Evaluation = Evaluation()
    engine: Engine = Engine()

    @cached_property
    def recipe(self) -> str:
        """The name of the recipe that it was loaded from, or ""; no setting, so that it does not count in comparisons."""
        return ""

    @classmethod
    def load(
        cls,
        source: "str | Path | Mapping[str, Any]" = "digits",
        *overrides: Setting,
        trust: bool = True,
        data: Any = None,
        recipe: str = "",
    ) -> "Config":
        """Read a recipe by name, by file or as a dict, and apply overrides: "method.mu=0.1" or ("method.mu", 0.1).

        `data` is a torch `Dataset` of images in place of the recipe's, or a pair of one to train on and one to test on.
        Without `trust`, a `module:name` that neither an override names nor anybody allowed before is an error and not
        imported. `recipe` is the name of a dict's. Errors have one line per mistake.
        """
        tree = (
            json.loads(json.dumps(dict(source), default=plain))
            if isinstance(source, Mapping)
            else read_recipe(source, takes_text)
        )
        settings = [parse_setting(override, takes_text) for override in overrides]
        apply_overrides(tree, settings)
        if trust:
            plugins.allow(tree)
        else:
            allow_typed(settings)
        if data is not None:
            tree["data"] = _stored(data, tree.get("data"))
        config = validate(tree)
        vars(config)["recipe"] = recipe or ("" if isinstance(source, Mapping) else Path(source).stem)
        if tree.get("rounds", config.rounds) != config.rounds and "rounds" in dict(settings):
            raise ConfigError(
                f"{config.method_name} stands for rounds={config.rounds}, got rounds={tree['rounds']}: remove it"
            )
        return config

    @classmethod
    def describe(cls, file: Path) -> "Config":
        """Read a run's configuration to show it: what it names outside this package is `Foreign` and not imported."""
        return validate(read_recipe(file, takes_text), foreign=True)

    @property
    def epochs(self) -> int:
        """E_local, from `training.epochs` or as E_total / T; a federation knows what `training.total_steps` come to."""
        assert self.training.total_steps is None
        return self.training.epochs or int(self.training.total_epochs or 0) // self.rounds

    @property
    def data_settings(self) -> dict[str, Any]:
        """What `open_dataset` takes beside the name."""
        group = getattr(self.partition, "column", None) if self.partition.name == "column" else None
        return self.data.model_dump(exclude={"name"}) | {"group": group}

    @property
    def method_name(self) -> str:
        """The method's name in `list methods`: of two names of one class, the one that stands for this many rounds."""
        names = {info.rounds: name for name, info in METHODS.items() if info.method is type(self.method)}
        return names.get(self.rounds) or METHOD.name_of(self.method)

    @property
    def system(self) -> str:
        """Method, the one that it holds, the objective if neither SimCLR nor the method's own, adapters, rule and adversary.

        For example fedfoa-fedema-byol, or fedavg-krum-alie.
        """
        names, method = [self.method_name], self.method
        while (method := method.inner) is not None:  # type: ignore[assignment]
            names.append(METHOD.name_of(method))
        objective = OBJECTIVE.name_of(self.objective)
        names += [objective] * (objective != "simclr" and self.objective.belongs_to is None)
        names += [] if (adapters := self.model.adapters) is None else [MODEL_ADAPTERS.name_of(adapters)]
        names += [ROBUST.name_of(self.robust)] * (self.robust is not None)
        names += [ADVERSARY.name_of(self.adversary)] * (self.adversary is not None)
        return "-".join(map(plugins.short, names))

    def dump(self) -> dict[str, Any]:
        """Give the configuration back as plain data that `load` reads."""
        return self.model_dump(mode="json")

    def flat(self) -> dict[str, Any]:
        """Give the configuration back as plain data by dotted key, as overrides name it."""
        return flatten(self.dump())


@cache
def takes_text(key: str) -> bool:
    """Whether a setting is text or a path by its type, or ends in one that is, as in a study."""
    parts = key.split(".")
    return is_text(Config, parts) or any(is_text(Config, parts[start:]) for start in range(1, len(parts) - 1))


def validate(tree: Mapping[str, Any], *, foreign: bool = False) -> Config:
    """Check plain data and fill in defaults; names that are not known or allowed are `Foreign`, if asked for."""
    sections = {name for name in Config.model_fields if name not in ("seed", "rounds", "public")}
    prepared: dict[str, Any] = {
        key: {SCALAR_MEANS.get(key, "name"): value} if key in sections and isinstance(value, str) else value
        for key, value in tree.items()
    }
    method = prepared.get("method")
    info = METHODS.get(str(method.get("name"))) if isinstance(method, Mapping) else None
    if info is not None and info.rounds is not None:
        prepared["rounds"] = info.rounds
    _follow(prepared)
    for key, value in flatten(prepared).items():
        if not is_utf8(f"{key}{value}"):
            raise ConfigError(f"{key}={value} is no UTF-8: rename it")
    try:
        config = Config.model_validate(prepared, context={"foreign": foreign})
    except ValidationError as error:
        raise ConfigError(*explain(error, Config, dotted=True)) from None
    _check_epochs(config)
    if not foreign:
        _check_allowed(config)
        _check_consistency(config)
    return config


def _follow(tree: dict[str, Any]) -> None:
    """Fill in defaults that follow from other settings, where nobody has set them.

    A buffer of fedbuff holds uploads of at most half of the clients, and privacy.clip, which sends no sample counts, weights
    clients evenly.
    """
    clock, clients, method, privacy = (_mapping(tree.get(key)) for key in ("clock", "clients", "method", "privacy"))
    policy = clock.get("policy")
    policy = {"name": policy} if isinstance(policy, str) else _mapping(policy)
    number = clients.get("number", Clients().number)
    if policy.get("name") == "fedbuff" and "buffer" not in policy and isinstance(number, int) and number > 0:
        tree["clock"] = {**clock, "policy": {**policy, "buffer": min(FedBuff().buffer, max(1, number // 2))}}
    info = METHODS.get(str(method.get("name")))
    weighs = info is not None and "weighting" in fields(info.method)
    if privacy.get("clip") is not None and weighs and "weighting" not in method:
        tree["method"] = {**method, "weighting": "uniform"}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def apply_overrides(tree: dict[str, Any], overrides: Sequence[Setting]) -> None:
    """Apply a user's settings in place, in their order."""
    settings = [parse_setting(override, takes_text) for override in overrides]
    typed = [key for key, value in dict(settings).items() if key in LENGTHS and value is not None]
    if len(typed) > 1:
        raise ConfigError(f"{' and '.join(typed)} are lengths of local training, each in place of the other: set one")
    for key, value in settings:
        _switch(tree, key, value)
    for key, value in settings:
        set_value(tree, key, value)


def allow_typed(overrides: Sequence[Setting]) -> None:
    """Let what a user's settings name be imported from now on in this process."""
    plugins.allow([value for _, value in (parse_setting(override, takes_text) for override in overrides)])


def _switch(tree: dict[str, Any], key: str, name: Any) -> None:
    """Where an override names another kind, as partition.name=iid does, drop the recipe's fields that it lacks."""
    *parents, last = key.split(".")
    choices = {"method": METHOD, "objective": OBJECTIVE, "partition": PARTITION, "training.optimizer": OPTIMIZER}
    choices |= {"clock.devices": CLOCK_DEVICES, "clock.policy": CLOCK_POLICY, "robust": ROBUST, "adversary": ADVERSARY}
    choices["model.adapters"] = MODEL_ADAPTERS
    choice = choices.get(".".join(parents))
    node: Any = tree
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if choice is None or last != "name" or not isinstance(node, dict) or name not in choice.names():
        return
    known = fields(choice.model(name)).keys() | {"name"}
    for field in [field for field in node if field not in known]:
        del node[field]


def _stored(data: Any, settings: Any) -> dict[str, Any]:
    """Store a dataset that only this process has, and name the store in place of the recipe's dataset."""
    settings = dict(settings) if isinstance(settings, Mapping) else {}
    options = {key: settings[key] for key in ("size", "channels", "test_fraction") if settings.get(key) is not None}
    try:
        path = keep(*(data if isinstance(data, tuple) else (data,)), **options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {**settings, "name": "store", "path": str(path)}


def _check_allowed(config: Config) -> None:
    """Refuse what would be imported only when the data and the models are opened."""
    encoders = (config.model.encoder, *(config.clients.models or ()))
    others = (("dataset", config.data.name), ("view", config.training.views or ""))
    for kind, name in (*others, *(("encoder", encoder) for encoder in encoders)):
        if ":" in name and not is_library(name):
            plugins.check_allowed(kind, name)
    for name in encoders:
        if ":" not in name and name not in (known := plugins.names("encoder", ENCODERS)):
            key = "model.encoder" if name == config.model.encoder else "clients.models"
            raise ConfigError(f"{key}: unknown encoder {name!r}{nearest(name, known)}")


def _check_epochs(config: Config) -> None:
    """Refuse numbers of epochs that do not work out."""
    training = config.training
    if sum(length is not None for length in (training.epochs, training.total_epochs, training.total_steps)) != 1:
        raise ConfigError(
            "set exactly one of training.epochs (E_local), training.total_epochs (T x E_local) and training.total_steps"
        )
    if training.total_epochs is not None and training.total_epochs % config.rounds:
        raise ConfigError(
            f"training.total_epochs={training.total_epochs} does not split into rounds={config.rounds} equal rounds: "
            "choose a multiple, or set training.epochs"
        )


def _check_consistency(config: Config) -> None:
    """Refuse what no single field can see, such as fields that would be ignored."""
    if config.clients.labeled is None and config.clients.label_choice != Clients().label_choice:
        raise ConfigError("clients.label_choice has no meaning without clients.labeled: set both or neither")
    if config.clients.labeled is not None and not config.objective.needs_labels:
        raise ConfigError(
            "clients.labeled has no meaning for an objective without labels, which learns from every sample: remove it or "
            "take objective=supervised"
        )
    if config.evaluation.tuning_epochs is not None and config.clients.test_fraction is None:
        raise ConfigError("evaluation.tuning_epochs has no meaning without clients.test_fraction: set both or neither")
    training = config.training
    if training.schedule_rounds is not None and training.optimizer.schedule == "constant":
        raise ConfigError("training.schedule_rounds has no meaning for training.optimizer.schedule=constant: remove it")
    if training.small_crops is not None:
        _check_small_crops(config)
    if not config.privacy.secure_sum and config.privacy.secure_protocol != Privacy().secure_protocol:
        raise ConfigError("privacy.secure_protocol has no meaning without privacy.secure_sum: set both or neither")
    if config.clock is not None and config.privacy.clip is not None:
        raise ConfigError(
            "privacy.clip counts on cohorts that are drawn evenly, and clock takes clients that are available and fast: "
            "remove one of both"
        )
    _check_method(config)
    if config.partition.name == "file":
        _check_whole(config)


def _check_small_crops(config: Config) -> None:
    """Refuse small crops where the loss knows nothing of them, or where views are a function's."""
    if not config.objective.takes_small_crops:
        allowed = ", ".join(sorted(name for name, kind in OBJECTIVES.items() if kind.takes_small_crops))
        raise ConfigError(
            f"training.small_crops are for objective {allowed}, got objective={OBJECTIVE.name_of(config.objective)}: set "
            "training.small_crops=null or take one of these"
        )
    if ":" in (config.training.views or ""):
        raise ConfigError(
            f"training.small_crops are cut out as a recipe says, got the function training.views={config.training.views}: "
            "set training.small_crops=null or take other views"
        )


def _check_whole(config: Config) -> None:
    """Refuse a file of indices where the training set that it counts in would lose samples before it is divided."""
    removing = {
        "data.train_limit=null": config.data.train_limit is not None,
        "data.validation=null": config.data.validation is not None,
        "data.on_bad=error": config.data.on_bad == "skip",
        "public=null": str(config.public).startswith("fraction:"),
    }
    if remedies := [remedy for remedy, removes in removing.items() if removes]:
        keys = " and ".join(remedy.partition("=")[0] for remedy in remedies)
        raise ConfigError(
            f"partition=file counts the whole training set, and {keys} would take samples out of it, so that indices stood "
            f"for others: set {' and '.join(remedies)}, or take another partition"
        )


def _check_method(config: Config) -> None:
    method, objective = config.method, config.objective
    name = METHOD.name_of(method)
    innermost = method
    while innermost.inner is not None:
        innermost = innermost.inner
    if objective.belongs_to not in (None, METHOD.name_of(innermost)):
        raise ConfigError(
            f"objective={objective.belongs_to} belongs to method={objective.belongs_to} alone, got method={name}: take "
            f"another objective or method={objective.belongs_to}"
        )
    if (config.robust or isinstance(config.adversary, UploadAdversary)) and config.privacy.secure_sum:
        raise ConfigError(
            "privacy.secure_sum=true shows sums alone, and robust and adversary are about single uploads: set "
            "privacy.secure_sum=false"
        )
    if method.needs_public and config.public is None:
        inner = method.inner
        who = f"{name} over {METHOD.name_of(inner)}" if inner is not None and inner.needs_public else name
        raise ConfigError(
            f"{who} works on public data, but this run has none: set public (for example client:0 or stl10:3200)"
        )
    if not (method.needs_public or (config.robust and config.robust.needs_public)) and config.public is not None:
        raise ConfigError(f"{name} uses no public data, got public={config.public}: set public=null")
    if config.privacy.secure_sum and not method.secure_sum:
        allowed = ", ".join(other for other, info in METHODS.items() if info.method().secure_sum)
        raise ConfigError(
            f"privacy.secure_sum=true shows sums alone, and the server of {name}, as it is set, looks at single uploads: "
            f"take a method that sums ({allowed}) or set privacy.secure_sum=false"
        )
    models = config.clients.models
    mixed = [other for other, info in METHODS.items() if not info.method().averages_weights]
    if models and method.averages_weights and set(models) != {config.model.encoder}:
        raise ConfigError(
            f"{name} averages weights, so all clients need one architecture, got {', '.join(models)}: remove "
            f"clients.models or take a method for mixed models ({', '.join(mixed)})"
        )
    if isinstance(config.model.adapters, Lora) and config.model.adapters.ranks and config.evaluation.diagnostics:
        raise ConfigError(
            "evaluation.diagnostics compares clients' updates number by number, and model.adapters.ranks gives them "
            "different numbers: leave one of both out"
        )
    if objective.needs_labels and method.needs_public:
        raise ConfigError(f"{name} compares representations: a supervised objective has none, take objective=simclr")
