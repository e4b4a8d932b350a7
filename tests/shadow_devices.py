"""A "cuda" device without CUDA: torch's FakeTensorMode says on which device each tensor is and refuses operations
across devices, and a tensor on the CPU behind each one holds its values, so that code that looks at these runs too.

What records autograd does not run there: it asks the CUDA runtime.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
"""They take indices from the CPU for a tensor on a GPU."""
LOOKS = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__)
"""What a program learns of a tensor's values."""
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
PLAIN = {
    torch.Tensor.nonzero: torch.ops.aten.nonzero.default,
    torch.Tensor.__invert__: torch.ops.aten.bitwise_not.default,
    torch.Tensor.copy_: torch.ops.aten.copy_.default,
}
"""What torch's Python binding asks the runtime of the device for, by the operation that does not."""
NOT_BY_SHAPES = (DataDependentOutputException, DynamicOutputShapeException)
"""What the fake mode says of operations whose result follows from values."""
NO_RUNTIME = "not linked with support for cuda"
"""What some of the fake mode's own decompositions come to."""


@contextmanager
def shadowed() -> Iterator[None]:
    """Tensors may be on "cuda" inside, and those made there are no use outside."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_Twice())
        stack.enter_context(_PlainIndexing())
        yield


def put(value: torch.Tensor, device: torch.device = CUDA) -> torch.Tensor:
    """Return a tensor from outside as one inside, on a device."""
    found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    found.shadow = _values(value)  # type: ignore[attr-defined]
    return found


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor from inside, as one to compare outside."""
    with _disable_current_modes():
        return _values(tensor).clone()  # type: ignore[no-any-return]


class _Twice(TorchDispatchMode):
    """Runs every operation twice: under the fake mode, for devices and shapes, and on the values."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        _check_pairs(func, args)
        device = None
        try:
            fakes = func(*args, **kwargs)
        except RuntimeError as error:
            if not isinstance(error, NOT_BY_SHAPES) and NO_RUNTIME not in str(error):
                raise
            fakes, device = kwargs.get("out"), _one_device(func, args, kwargs)
        with _disable_current_modes():
            own_args, own_kwargs = pytree.tree_map(_values, (list(args), dict(kwargs)))
            if own_kwargs.get("device") is not None:
                own_kwargs["device"] = CPU
            own_kwargs.pop("pin_memory", None)
            results = func(*own_args, **own_kwargs)
        if device is not None and fakes is None:
            return pytree.tree_map_only(torch.Tensor, lambda value: put(value, device), results)
        given = {id(each) for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        for fake, value in zip(pytree.tree_leaves(fakes), pytree.tree_leaves(results), strict=True):
            if isinstance(fake, FakeTensor) and id(fake) not in given:
                fake.shadow = value  # type: ignore[attr-defined]
        return fakes


class _PlainIndexing(TorchFunctionMode):
    """`x[...]` in torch's Python binding asks the runtime of x's device. The same, by operations that do not."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].device.type != "cpu":
            return _indexed(args[0], args[1])
        if func in LOOKS and isinstance(args[0], FakeTensor):
            with _disable_current_modes():
                return func(_values(args[0]), *args[1:])
        if func == SET_DATA and isinstance(args[0], FakeTensor):
            return _take_over(args[0], args[1])
        if func in PLAIN:
            return PLAIN[func](*args)
        if func is torch.Tensor.__setitem__ and args[0].device.type != "cpu":
            return _set(*args)
        return func(*args, **(kwargs or {}))


def _take_over(x: FakeTensor, data: FakeTensor) -> None:
    """`x.data = data`, of which torch changes neither the device that the fake mode tells, nor the values here."""
    SET_DATA(x, data)
    x.fake_device, x.shadow = data.fake_device, _values(data)  # type: ignore[attr-defined]


def _indexed(x: torch.Tensor, index: Any) -> torch.Tensor:
    each, dim = index if isinstance(index, tuple) else (index,), 0
    for position, part in enumerate(each):
        if part is None:
            x, dim = x.unsqueeze(dim), dim + 1
        elif part is Ellipsis:
            dim = x.dim() - sum(it is not None for it in each[position + 1 :])
        elif isinstance(part, slice):
            x, dim = torch.ops.aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1), dim + 1
        elif isinstance(part, int):
            x = x.select(dim, part)
        else:
            assert len(each) == 1, "an index tensor stands alone here"
            return torch.ops.aten.index.Tensor(x, [torch.as_tensor(part)])  # type: ignore[no-any-return]
    return x


def _set(x: torch.Tensor, index: Any, value: Any) -> None:
    if isinstance(index, torch.Tensor):
        x.index_put_((index,), torch.as_tensor(value, dtype=x.dtype, device=x.device))
    elif isinstance(value, torch.Tensor):
        torch.ops.aten.copy_.default(_indexed(x, index), value)
    else:
        _indexed(x, index).fill_(value)


def _check_pairs(func: Any, args: Sequence[Any]) -> None:
    """The fake mode lets operations on lists of tensors pass, which copies alone may do across devices."""
    name = func._schema.name
    if not name.startswith(("aten::_foreach", "aten::_fused")) or name.startswith("aten::_foreach_copy"):
        return
    for together in zip(*[each for each in args if isinstance(each, list | tuple) and each], strict=False):
        devices = {each.device for each in together if isinstance(each, torch.Tensor)}
        assert len(devices) <= 1, f"{func} across devices: {devices}"


def _values(leaf: Any) -> Any:
    return leaf.shadow if isinstance(leaf, FakeTensor) else leaf  # type: ignore[attr-defined]


def _one_device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The device of all arguments, which the fake mode has not come to check."""
    tensors = pytree.tree_leaves((args[:1] if func in INDEXING else args, kwargs))
    devices = {each.device for each in tensors if isinstance(each, torch.Tensor) and each.dim()}
    assert len(devices) <= 1, f"{func} across devices: {devices}"
    return devices.pop() if devices else CPU
