"""Modules whose weights will come from elsewhere, built without drawing any."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = frozenset({nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_})
"""What torch's layers, and ours, draw their first weights with."""


class Undrawn(TorchFunctionMode):
    """Inside, modules are built with whatever their memory holds, and no generator moves.

    torch's own ways, `skip_init` and the meta device, import SymPy when such a module gets its memory.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let a draw return its tensor as it was."""
        given = kwargs or {}
        if func in (Tensor.uniform_, Tensor.normal_):
            return args[0].zero_()  # nn.init.trunc_normal_ draws until what it finds lies within its bounds
        if func in DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
