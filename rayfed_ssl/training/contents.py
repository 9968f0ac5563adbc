"""What a training is made of: tensors and generators, whose values change from client to client, and its kind, all the rest.

Losses and terms say what they read by being functions of modules or methods with what they read bound by
`functools.partial`, or frozen dataclasses. A nested function hides it, and so does a class with a state of its own.
"""

import copy
import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.training.context import Context
from rayfed_ssl.trees import is_node

Parts = TypeVar("Parts")

STATIC = (
    *(type(None), bool, int, float, str, bytes, frozenset, Enum, PurePath, type, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.memory_format, type(functools.cache(len))),
)
"""Types of what is compared by its value and never copied."""


class UndeclaredError(Exception):
    """What a training reads cannot be told from its parts; says why."""


@dataclass
class Contents:
    """What a training is made of.

    Attributes:
        tensors: All that parts hold, each once, in a fixed order.
        generators: Likewise.
        shared: Samples on the device and what all participants know, which belong to the kind and are not copied.
        modules: The modules that are no part of another one.
        kind: Equal for trainings that run the same operations on tensors of the same form.
    """

    tensors: list[Tensor] = field(default_factory=list)
    generators: list[torch.Generator] = field(default_factory=list)
    shared: list[Shard | Context] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    kind: Hashable = None
    _places: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Any) -> "Contents":
        """List what parts hold: a tree, also of modules, generators, shards and functions with what is bound to them.

        Raises:
            UndeclaredError: A part may hold what is not seen.
        """
        contents = cls()
        contents.kind = contents._kind(parts)
        return contents

    def copy(self, parts: Parts) -> Parts:
        """Copy the parts that these contents are of; compiled modules stay compiled."""
        memo: dict[int, Any] = {id(part): part for part in self.shared}
        for tensor in self.tensors:
            clone = tensor.detach().clone()
            memo[id(tensor)] = Parameter(clone, tensor.requires_grad) if isinstance(tensor, Parameter) else clone
        for generator in self.generators:
            memo[id(generator)] = torch.Generator().set_state(generator.get_state())
        copied = copy.deepcopy(parts, memo)
        for module in self.modules:
            for whole in module.modules():
                if whole._compiled_call_impl is not None:  # which a copy leaves out
                    memo[id(whole)].compile()
        return copied

    def _kind(self, part: Any) -> Hashable:
        if isinstance(part, Tensor | torch.Generator | nn.Module):
            if id(part) in self._places:
                return "again", self._places[id(part)]
            self._places[id(part)] = len(self._places)
        if isinstance(part, Tensor):
            self.tensors.append(part)
            return part.dtype, part.device, part.shape, part.stride(), part.requires_grad
        if isinstance(part, torch.Generator):
            self.generators.append(part)
            return torch.Generator
        if isinstance(part, nn.Module):
            self.modules.append(part)
            modules = tuple((name, type(module), module.training) for name, module in part.named_modules())
            held = (*part.named_parameters(), *part.named_buffers())
            return modules, tuple((name, self._kind(tensor)) for name, tensor in held)
        if isinstance(part, Shard):
            if not part.is_resident:
                raise UndeclaredError("samples that they draw are not on the device")
            self.shared.append(part)
            return Shard, id(part)
        if isinstance(part, STATIC):
            return type(part), part
        if isinstance(part, Context):
            self.shared.append(part)
        return type(part), self._inside(part)

    def _inside(self, part: Any) -> Hashable:
        """Take a part with parts of its own."""
        if isinstance(part, functools.partial):
            return self._kind(part.func), self._kind(part.args), self._kind(part.keywords)
        if isinstance(part, MethodType):
            return part.__func__, self._kind(part.__self__)
        if isinstance(part, FunctionType):
            return part.__code__, self._closure(part)
        if isinstance(part, Mapping):
            return tuple((name, self._kind(value)) for name, value in part.items())
        if isinstance(part, list | tuple):
            return tuple(map(self._kind, part))
        if is_node(part):
            return tuple(self._kind(getattr(part, field.name)) for field in fields(part) if field.compare)
        raise UndeclaredError(
            f"a {type(part).__qualname__} may hold what is not seen: loss and terms read dataclasses of tensors"
        )

    def _closure(self, function: FunctionType) -> Hashable:
        """Take what a nested function holds, if all of it belongs to the kind."""
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        inside = Contents()
        kind = inside._kind([*held, *(function.__defaults__ or ())])
        if inside.tensors or inside.generators:
            raise UndeclaredError(
                f"{function.__qualname__} is a nested function that holds tensors or generators: bind them to a function "
                "of the module by functools.partial"
            )
        return kind
