"""Trees in safetensors files: named tensors, and their structure as JSON in the header.

Nothing that is loaded is executed, and any safetensors library reads the tensors. Files are written from the tensors'
own memory, into directories and buckets alike; the library's `save`, which a bucket needs, takes twice their bytes.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from rayfed_ssl.errors import CheckpointError, reason
from rayfed_ssl.foreign.reading import check_header, plain_json
from rayfed_ssl.method import Method
from rayfed_ssl.training.objective import Objective
from rayfed_ssl.trees import Tree, is_node

DTYPES = {
    "b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "f2": "F16", "u4": "U32", "i4": "I32", "f4": "F32",
    "u8": "U64", "i8": "I64", "f8": "F64", "c8": "C64",
}  # fmt: skip
"""The format's names of numpy's types."""

DEFINE_STATES = ("method", "methods", "objectives", "training", "aggregation", "privacy")
"""Modules and packages of `rayfed_ssl` whose dataclasses a file may hold."""

STRUCTURE = "structure"
"""Key of a tree's structure in a file's metadata."""

RESTORE = "restore it from a copy, or start the run anew"

DAMAGE = (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, OSError)
"""What reading a damaged file of tensors raises."""

Chunk = bytes | memoryview


def encode(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into plain JSON data and named tensors, which are on the CPU and contiguous."""
    tensors: dict[str, Tensor] = {}

    def visit(node: Tree, path: str) -> Any:
        if isinstance(node, Tensor):
            tensors[path] = node.detach().cpu().contiguous()
            return {"tensor": path}
        if isinstance(node, dict):
            return {"dict": [[key, visit(value, f"{path}/{key}")] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            return {type(node).__name__: [visit(value, f"{path}/{i}") for i, value in enumerate(node)]}
        if is_node(node):
            names = [f.name for f in dataclasses.fields(node)]
            fields = {name: visit(getattr(node, name), f"{path}/{name}") for name in names}
            return {"class": _class_name(type(node)), "fields": fields}
        return {"value": node}

    return visit(tree, ""), tensors


def decode(structure: Any, tensors: dict[str, Tensor]) -> Tree:
    """Join what `encode` split, taking each tensor once; see `_dataclass` for the classes that may be constructed."""
    if "tensor" in structure:
        return tensors.pop(structure["tensor"])
    if "dict" in structure:
        return {key: decode(value, tensors) for key, value in structure["dict"]}
    if "list" in structure:
        return [decode(value, tensors) for value in structure["list"]]
    if "tuple" in structure:
        return tuple(decode(value, tensors) for value in structure["tuple"])
    if "class" in structure:
        fields = {name: decode(value, tensors) for name, value in structure["fields"].items()}
        return _dataclass(structure["class"])(**fields)
    return structure["value"]


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _dataclass(name: str) -> type:
    """Find a dataclass of a loaded module that defines states, here or where a loaded method or objective is defined.

    Nothing is imported, so a file cannot make a program run code that its configuration does not name.
    """
    module, _, attribute = name.partition(":")
    if module.startswith("rayfed_ssl."):
        may_define = module.split(".")[1] in DEFINE_STATES and module in sys.modules
        cls = getattr(sys.modules[module], attribute, None) if may_define else None
    else:
        classes = [value for plugin in _plugin_modules() for value in vars(plugin).values() if isinstance(value, type)]
        cls = next((value for value in classes if _class_name(value) == name), None)
        if cls is None:
            raise CheckpointError(
                f"a checkpoint may hold states of rayfed_ssl and of the run's method or objective only, got {name}: do not "
                "load this file"
            )
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CheckpointError(f"a checkpoint may hold dataclasses only, got {name}: do not load this file")
    return cls


def _plugin_modules() -> list[ModuleType]:
    """List the loaded modules that define a method or an objective."""
    classes: list[type] = [Method, Objective]
    for cls in classes:  # grows while it is walked
        classes += cls.__subclasses__()
    return [sys.modules[name] for name in dict.fromkeys(cls.__module__ for cls in classes) if name in sys.modules]


def chunks(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[Chunk]:
    """Yield a file's content: the header's length and the header, then each tensor's own memory.

    The library orders metadata otherwise in each process; here equal content has equal bytes.
    """
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    # Wide types first: each tensor then begins at a multiple of its item's size, so that a mapped file can be used as it is.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.str[1:]], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield arrays[name].data.cast("B") if arrays[name].size else b""


def read_path(path: Path) -> Tree:
    """Read a tree from a file of this machine, whose pages it shares; CheckpointError if it is damaged."""
    with _reading(str(path)):
        check_header(path)
        with safe_open(path, framework="pt") as file:
            structure = plain_json((file.metadata() or {})[STRUCTURE].encode())
            return decode(structure, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def read_bytes(content: bytes, name: str) -> Tree:
    """Read a tree from a file's content; CheckpointError if it is damaged."""
    with _reading(name):
        length = int.from_bytes(content[:8], "little")
        tensors = load(content)
        header = plain_json(content[8 : 8 + length])
        return decode(plain_json(header["__metadata__"][STRUCTURE].encode()), tensors)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn the errors of a damaged file into one line."""
    try:
        yield
    except (FileNotFoundError, CheckpointError):
        raise
    except (*DAMAGE, ImportError, AttributeError) as error:
        raise CheckpointError(f"{name} is damaged ({reason(error)}): {RESTORE}") from None
