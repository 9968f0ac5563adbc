"""Recipes: YAML files with the keys of a configuration, and the overrides that change them."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from rayfed_ssl.errors import ConfigError, nearest, reason
from rayfed_ssl.foreign import plugins
from rayfed_ssl.foreign.reading import MAX_YAML, MAX_YAML_VALUES, check_plain, read_bytes

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def shipped_names(package: str) -> list[str]:
    """Name the YAML files that lie in a package."""
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def shipped_text(package: str, name: str) -> str:
    """Read a YAML file that lies in a package."""
    return resources.files(package).joinpath(f"{name}.yaml").read_text()


TakesText: TypeAlias = Callable[[str], bool]
"""Whether a value is text or a path, by its dotted key: `schema.takes_text`, or `never` where torch is not imported yet."""


def never(key: str) -> bool:
    """No value is known to be text."""
    return False


def read_shipped(
    kind: str,
    package: str,
    name: str,
    takes_text: TakesText,
    hint: Callable[[str, Iterable[str]], str] = nearest,
) -> dict[str, Any]:
    """Read a file of a kind as plain data, one that lies in a package by name or another by its path.

    Values that take text stay what is written, as 001 or 2024-11-27.

    Raises:
        ConfigError: There is none, with a `hint` at a name that there is, or it is no mapping in YAML.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return _read_yaml(Path(name), kind, takes_text)
    names = shipped_names(package)
    if name not in names:
        raise ConfigError(f"there is no {kind} {name!r}{_command_for(Path(name), kind) or hint(name, names)}")
    return deepcopy(_shipped(package, name))


@cache
def _shipped(package: str, name: str) -> dict[str, Any]:
    tree: dict[str, Any] = plain_data(shipped_text(package, name))
    return tree


def _command_for(directory: Path, kind: str) -> str:
    """Say what is to be done with a directory that stands where a file is expected; empty for anything else."""
    if not directory.is_dir():
        return ""
    path = shlex.quote(str(directory))
    if (directory / "run.json").is_file():
        return f": it is a run, whose recipe is {path}/config.yaml; `rayfed-ssl resume {path}` goes on with it"
    if (directory / "study.json").is_file():
        return f": it is a study, with which `rayfed-ssl sweep --resume {path}` goes on"
    if kind != "recipe":
        return f": it is a directory; name a file .yaml of a {kind}, or one of `rayfed-ssl list`"
    return f": it is a directory; of pictures, put a recipe before it: fedsimclr data.name=folder data.path={path}"


def recipe_names() -> list[str]:
    """Name the recipes that come with the package."""
    return shipped_names("rayfed_ssl.recipes")


class _Loader(yaml.SafeLoader):
    """Plain data, of which no key is there twice: PyYAML silently takes the last."""

    pairs = 0

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: Any) -> None:
        """Put in the keys that "<<" names, of one mapping: those of a list, and of its lists, could be billions."""
        if any(key.value == "<<" and not isinstance(value, yaml.MappingNode) for key, value in node.value):
            raise yaml.constructor.ConstructorError(None, None, "'<<' takes one mapping", node.start_mark)
        super().flatten_mapping(node)
        self.pairs += len(node.value)
        if self.pairs > MAX_YAML_VALUES:
            raise yaml.constructor.ConstructorError(None, None, "'<<' makes it too large", node.start_mark)


_Loader.add_implicit_resolver(  # as in YAML 1.2: PyYAML reads 1e-3 as a string
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def plain_data(text: str, takes_text: TakesText = never) -> Any:
    """Read YAML as plain data; a `yaml.YAMLError` if it is none, has a key twice, or is larger than `reading` allows."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _keep_text(root, "", takes_text, set())
        return check_plain(loader.construct_document(root))
    except (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise yaml.YAMLError(str(error)) from None  # what PyYAML's constructors raise for a 13th month and the like


def _keep_text(node: yaml.Node, key: str, takes_text: TakesText, seen: set[int]) -> None:
    """Take scalars without quotes for text where their key does; each node once, as aliases share them."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            _keep_text(value, f"{key}.{name.value}".lstrip("."), takes_text, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _keep_text(value, key, takes_text, seen)
    elif node.tag not in ("tag:yaml.org,2002:null", _TEXT) and takes_text(key):
        node.tag = _TEXT


_TEXT = "tag:yaml.org,2002:str"


def divide_settings(
    settings: Sequence[str], parts: Mapping[str, Mapping[str, "FieldInfo"]], what: str
) -> dict[str, dict[str, Any]]:
    """Divide settings among parts of a kind: "key=value" is of all that have it, "NAME.key=value" of one.

    Args:
        settings: As they are typed.
        parts: Each part's settings, with their types.
        what: The kind, for messages.

    Raises:
        ConfigError: No part has such a setting.
    """
    divided: dict[str, dict[str, Any]] = {name: {} for name in parts}
    for setting in settings:
        key, _, text = setting.partition("=")
        takers = [name for name in parts if key.startswith(f"{name}.")] or [
            name for name in parts if key in parts[name]
        ]
        if not takers:
            raise ConfigError(f"no {what} here has a setting {key!r}{nearest(key, set().union(*parts.values()))}")
        for name in takers:
            inner_key = key.removeprefix(f"{name}.")
            divided[name][inner_key] = read_value(inner_key, text, partial(_is_text, parts[name]))
    return divided


def _is_text(fields: Mapping[str, "FieldInfo"], key: str) -> bool:
    from rayfed_ssl.config.strict import is_text_type

    return key in fields and is_text_type(fields[key].annotation)


def read_recipe(source: str | Path, takes_text: TakesText) -> dict[str, Any]:
    """Read a recipe file, or one that comes with the package, as plain data without dotted keys."""
    return _nested(read_shipped("recipe", "rayfed_ssl.recipes", str(source), takes_text, suggestion), str(source))


def suggestion(name: str, choices: Iterable[str], kind: str = "") -> str:
    """Say what to write in place of an unknown name of a kind: where it belongs, or else the nearest of the choices."""
    from rayfed_ssl.methods import METHODS  # loads torch, which a sweep's status does without
    from rayfed_ssl.objectives import OBJECTIVES

    for key, registry in (("method", METHODS), ("objective", OBJECTIVES)):
        if name in registry and key != kind:
            return f": it is set as {key}={name}"
    if name in recipe_names():
        return ": it is a recipe, which comes before all settings"
    return nearest(name, choices)


def _read_yaml(path: Path, kind: str, takes_text: TakesText) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"there is no {kind} file {path}: give a path that exists, or a name from `list {kind}s`")
    try:
        tree = plain_data(read_bytes(path, MAX_YAML).decode(), takes_text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {kind} {path} ({reason(error)}): it must be a YAML text") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {reason(error)}") from None
    if tree is None:
        raise ConfigError(f"{path} is empty: write keys and values into it, or take a {kind} from `list {kind}s`")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(tree).__name__}")
    plugins.note(tree, path)
    return tree


_DOTTED = re.compile(r"\w+(\.\w+)+")


def _nested(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Turn dotted keys, `optimizer.lr: 0.1`, into nested ones."""
    nested: dict[str, Any] = {}
    for key, value in tree.items():
        value = _nested(value, source) if isinstance(value, Mapping) else value
        *parents, last = key.split(".") if isinstance(key, str) and _DOTTED.fullmatch(key) else [key]
        node = _section(nested, parents, f"{source}: {key}")
        if isinstance(node.get(last), dict) and isinstance(value, dict) and not node[last].keys() & value.keys():
            node[last] |= value
        elif last in node:
            raise ConfigError(f"{source}: {key} is there twice")
        else:
            node[last] = value
    return nested


SCALAR_MEANS = {"model": "encoder", "clock": "devices", "small_crops": "number"}
"""Which field of a section a bare value sets; for all others it is the name."""


def _section(tree: dict[str, Any], parents: Sequence[str], key: str) -> dict[str, Any]:
    """Find the mapping below the parents, made where it is missing; of a bare value it becomes the section's field."""
    for parent in parents:
        child = tree.setdefault(parent, {})
        if isinstance(child, str) or (isinstance(child, int) and parent in SCALAR_MEANS):
            child = tree[parent] = {SCALAR_MEANS.get(parent, "name"): child}
        if not isinstance(child, dict):
            raise ConfigError(f"{key} cannot be set: {parent} holds {child!r}, which has no fields")
        tree = child
    return tree


LENGTHS = frozenset({"training.epochs", "training.total_epochs", "training.total_steps"})
"""One of them is the length of local training, and another one takes its place."""


Setting: TypeAlias = str | tuple[str, Any]
"""A user's "key=value", or the pair that it means."""


def parse_setting(setting: Setting, takes_text: TakesText) -> tuple[str, Any]:
    """Divide "a.b=value" into its key and its value; a ConfigError where it has another form."""
    if not isinstance(setting, str):
        return setting
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"a setting looks like key=value, got {setting!r}; one recipe may come before all settings")
    if " " in key.strip():
        raise ConfigError(
            f"{setting!r} has a space before its '=': write the recipe and each setting as a word of its own"
        )
    return key, read_value(key, text, takes_text)


def read_value(key: str, text: str, takes_text: TakesText) -> Any:
    """Read a value as it is typed: of a key that takes text, the text itself, else YAML; `NULL` is None for both."""
    try:
        value = plain_data(text)
    except yaml.YAMLError as error:
        if isinstance(error, yaml.constructor.ConstructorError) and not takes_text(key):
            raise ConfigError(f"{key} cannot be read: {error.problem}, got {text}") from None
        return text
    return value if text in NULL or value == text or not takes_text(key) else text


NULL = ("", "~", "null", "Null", "NULL")
"""How YAML writes None."""


def set_value(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set "a.b" in place; a bare value for a section ("method" to "fedavg") replaces the section."""
    *parents, last = key.split(".")
    _section(tree, parents, key)[last] = deepcopy(value)
    if key in LENGTHS and value is not None:
        for other in LENGTHS - {key}:
            tree["training"].pop(other.partition(".")[2], None)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give nested settings dotted keys; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
