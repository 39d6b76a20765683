"""Tensors on their way from a device to the host, while the computation runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Pending:
    """A value with tensors still in transfer from a device; `resolve` waits for them."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def resolve(self) -> Any:
        """Return the value with every tensor on the host. Blocks: not on the loop thread."""
        return _resolve(self.tree)

    def arrived(self) -> bool:
        """Return True if `resolve` would not wait. Does not block."""
        return _arrived(self.tree)


class DeviceCopy:
    """A tensor in transfer: host memory, and functions that wait or ask for it."""

    __slots__ = ("arrived", "host", "wait")

    def __init__(self, host: Any, wait: Callable[[], Any], arrived: Callable[[], bool] = lambda: True) -> None:
        self.host, self.wait, self.arrived = host, wait, arrived


def copy_to_host(tensor: Any) -> DeviceCopy:
    """Start to copy a device tensor to the host, after the work in its stream."""
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if not tensor.is_cuda:
        host = tensor.cpu()
        return DeviceCopy(host, lambda: None)
    with torch.cuda.device(tensor.device):
        clone = tensor.clone(memory_format=torch.contiguous_format)
        side = _side_stream(torch, tensor.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
            host.copy_(clone, non_blocking=True)
            clone.record_stream(side)
            done = torch.cuda.Event()
            done.record(side)
    return DeviceCopy(host, done.synchronize, done.query)


_side_streams: dict[Any, Any] = {}


def _side_stream(torch: Any, device: Any) -> Any:
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device)
    return _side_streams[device]


def _resolve(tree: Any) -> Any:
    if type(tree) is DeviceCopy:
        tree.wait()
        return tree.host.item() if tree.host.dim() == 0 else tree.host
    if isinstance(tree, tuple | list | set):
        return type(tree)(map(_resolve, tree))
    if type(tree) is dict:
        return {k: _resolve(v) for k, v in tree.items()}
    return tree


def _arrived(tree: Any) -> bool:
    if type(tree) is DeviceCopy:
        return tree.arrived()
    if type(tree) is dict:
        return all(map(_arrived, tree.values()))
    return not isinstance(tree, tuple | list | set) or all(map(_arrived, tree))
