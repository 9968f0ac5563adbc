"""An accelerator that is not there: its tensors hold CPU tensors, and what a GPU would refuse is refused.

    with PretendDevice() as gpu:
        model.to(DEVICE)(images.to(DEVICE)).sum().backward()
    print(gpu.operations.total(), gpu.waits)

Numbers are those of the CPU, bit for bit, because the CPU computes them. An operation on tensors of both devices raises,
and so do random draws by a generator of the CPU. Whatever would make the processor wait for a GPU is counted.

Nothing is registered with torch: the device has effect between `with` and the end of the block, and tensors on it are of
no use elsewhere. Its type is "lazy", one of torch's own that has no kernels. Autograd runs backward passes of this type
in the calling thread. Those of a device that is registered as PrivateUse1 need a thread that torch starts with the first
backward pass of a process, so that type would have to be registered in every process that may ever use it.

Limits: there is one device, without streams, pinned memory and autocast.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("lazy:0")
"""Where tensors of the pretend accelerator are."""

CPU = torch.device("cpu")

aten = torch.ops.aten

INDEXING = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor})
"""Operations that copy indices of the CPU to the device."""

COPIES = frozenset({aten._to_copy.default, aten.copy_.default})


class PretendTensor(Tensor):
    """A tensor on the device.

    Attributes:
        held: The CPU tensor with its values.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        """Wrap a CPU tensor; the two share their memory."""
        wrapper: Self = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        return wrapper

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name what this tensor is made of, so that `nn.Module.to` swaps parameters as a whole."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: None, size: object, stride: object) -> "PretendTensor":
        """Make a tensor of what `__tensor_flatten__` names."""
        return PretendTensor(parts["held"])

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.held!r})"

    def tolist(self) -> Any:
        """Copy the values to a list, which torch refuses for subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse to work outside the block."""
        raise RuntimeError(f"{op} on a tensor of {DEVICE} outside `with PretendDevice()`: move it to the CPU before")


class PretendDevice(TorchDispatchMode):
    """The accelerator, between `with` and the end of the block.

    Attributes:
        operations: How often each operation ran on it, by name.
        waits: How often each operation waited for it, by name: copies to the CPU and whatever depends on values.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._outer: list[bool] = []

    def __enter__(self) -> Self:
        """Switch the device on."""
        # torch.tensor(data, device=...) would otherwise look for a kernel of the device and pass this mode by.
        self._outer.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Switch it off."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(self._outer.pop())

    def __torch_dispatch__(self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on what tensors hold, and put its results where they belong."""
        kwargs = kwargs or {}
        flat = [*_leaves(args), *_leaves(kwargs.values())]
        tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        mine = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
        target = _target(op, args, kwargs, bool(mine))
        if not mine and target != DEVICE:
            return op(*args, **kwargs)
        # Autograd splits composite operations up, but does not see those of inference mode.
        if torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors):
            with self:
                result = op.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _refuse(op, args, flat, tensors, target)
        name = str(op).removeprefix("aten.")
        self.operations[name] += 1
        if _waits(op, args, kwargs, target):
            self.waits[name] += 1
        inner_args = _map(_inner, args)
        inner_kwargs = {name: _map(_inner, value) for name, value in kwargs.items()}
        wrapped = {id(tensor.held): tensor for tensor in mine}

        def wrap(result: Any) -> Any:
            if not isinstance(result, Tensor) or id(result) in wrapped:  # operations in place give their argument back
                return wrapped.get(id(result), result)
            return PretendTensor(result) if target == DEVICE else result

        results = _map(wrap, op(*inner_args, **inner_kwargs))
        if torch.Tag.inplace_view in op.tags:  # the wrapper has a shape of its own, which must follow
            return_and_correct_aliasing(op, args, kwargs, results)
        return results


def _target(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], is_mine: bool) -> torch.device:
    """Find the device that results are on."""
    if op is aten.copy_.default:
        is_mine = isinstance(args[0], PretendTensor)
    if (device := kwargs.get("device")) is not None:
        is_mine = torch.device(device).type == DEVICE.type
    return DEVICE if is_mine else CPU


# What operations take and give has sequences only; torch's _pytree, which knows all containers, took a third of the time.
def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_map(function, item) for item in value])
    return function(value)


def _inner(leaf: Any) -> Any:
    if isinstance(leaf, PretendTensor):
        return leaf.held
    return CPU if isinstance(leaf, torch.device) else leaf


def _refuse(op: OpOverload, args: Sequence[Any], flat: list[Any], tensors: list[Tensor], target: Any) -> None:
    """Raise where CUDA would."""
    if target == DEVICE and any(isinstance(leaf, torch.Generator) for leaf in flat):
        raise RuntimeError(
            f"{op}: expected a generator of {DEVICE}, got one of the CPU: draw there and copy the numbers"
        )
    if op in COPIES:
        return
    if op in INDEXING:  # indices may be on the CPU, but not the other way round
        values = [value for value in args[2:3] if value.dim()]
        tensors = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)] + [args[0], *values]
    elif torch.Tag.pointwise in op.tags:  # scalars may be on the CPU
        tensors = [tensor for tensor in tensors if tensor.dim() or isinstance(tensor, PretendTensor)]
    if len({isinstance(tensor, PretendTensor) for tensor in tensors}) > 1:
        raise RuntimeError(f"{op}: expected all tensors on one device, got some on {DEVICE} and some on the CPU")


def _waits(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], target: torch.device) -> bool:
    """Whether the processor must wait for the device to know what comes of an operation."""
    if op in COPIES:
        return target == CPU
    if op in INDEXING:  # a mask becomes indices, as many as are true; a single number is written without them
        masks = any(isinstance(i, PretendTensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return masks and not (len(args) > 2 and args[2].numel() == 1 and not isinstance(args[2], PretendTensor))
    if op is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(op.tags))
