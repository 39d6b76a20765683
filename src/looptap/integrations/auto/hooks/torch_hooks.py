"""Places looptap's hooks in torch, once in a process.

- after each step of an optimizer: torch's own global hook, which torch.compile leaves out of its graphs;
- before each backward pass: the attribute of the autograd engine that `torch.autograd.backward` looks up;
- before ``GradScaler.scale`` and ``update``, ``model.eval()``, as an optimizer is made, in ``optimizer.zero_grad()``,
  before and after each batch of a DataLoader: see `call_notice`.

Nothing is added to the stack of a forward pass, an optimizer's step or a DataLoader. Around a backward pass there is a
`WholePass`, for those that fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from looptap.integrations.auto.hooks.call_notice import notice_calls, notice_lookups, notice_readings, notice_settings
from looptap.integrations.auto.hooks.run_events import RunEvents, WholePass
from looptap.integrations.auto.sight.models import optimizers_exist
from looptap.integrations.harmless import say_once

_COPIES_LOCALS = sys.version_info < (3, 13)

Before = Callable[[Sequence[Any], Sequence[Any], Callable[..., Any], FrameType], Callable[..., Any] | None]
"""Gets the losses of a backward pass, their gradients, what runs it, and the frame that calls that; returns what runs
it instead, or None."""


def place_hooks(events: RunEvents) -> None:
    """Have torch report to ``events``; torch has been imported."""
    import torch
    from torch.optim import optimizer

    def after_step(stepped: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        try:
            events.after_step(stepped)
        except Exception as error:
            say_once(error)

    optimizer.register_optimizer_step_post_hook(_uncompiled(after_step))
    _watch_backward(events.before_backward)
    notice_calls(torch.amp.grad_scaler.GradScaler, "scale", events.before_scale)
    notice_calls(torch.amp.grad_scaler.GradScaler, "update", _uncompiled(events.before_scaler_update))
    notice_calls(torch.nn.Module, "eval", _uncompiled(events.before_eval))
    if optimizers_exist():
        events.own_updates.find_optimizers()
    notice_lookups(optimizer.Optimizer, "add_param_group", _uncompiled(events.before_group))
    notice_readings(optimizer.Optimizer, "_zero_grad_profile_name", _uncompiled(events.before_zero_grad))
    loaders = sys.modules.get("torch.utils.data.dataloader")
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        if (kind := getattr(loaders, name, None)) is not None:
            notice_lookups(kind, "_next_data", _uncompiled(events.before_batch))
    if (kind := getattr(loaders, "_BaseDataLoaderIter", None)) is not None:
        notice_settings(kind, "_num_yielded", _uncompiled(events.after_batch))  # what it counts right after each batch


def _uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Return the hook so that torch.compile leaves it out of its graphs.

    `torch.compiler.disable` loads the compiler, which takes seconds, and costs some microseconds a call: torch's own
    form of it waits for the first call, and outside of compiled code the hook is called as it is.
    """
    import torch
    from torch._compile import _disable_dynamo

    left_out = _disable_dynamo(hook)
    compiling = torch.compiler.is_dynamo_compiling  # which the compiler takes for True
    compiles = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", compiling)

    def called(*arguments: Any) -> None:
        if compiling() or compiles() not in (None, False):  # between two graphs: the next frames would be compiled
            left_out(*arguments)
        else:
            hook(*arguments)

    return called


def _watch_backward(before: Before) -> None:
    """Have ``before`` called with what each backward pass is called on."""
    import torch
    from torch.autograd import Variable, graph

    engine = Variable._execution_engine
    caller = graph._engine_run_backward.__code__
    nested = torch._C._current_graph_task_id

    look = _uncompiled(_look)

    def run_backward(self: Any) -> Callable[..., Any]:
        run: Callable[..., Any] = engine.run_backward
        replaced: list[Callable[..., Any] | None] = []
        look(sys._getframe(1), caller, nested, before, run, replaced)
        return (replaced[0] if replaced else None) or run

    if (skip := getattr(torch._C._dynamo.eval_frame, "skip_code", None)) is not None:
        skip(run_backward.__code__)  # it reads its caller's frame
        skip(WholePass.__call__.__code__)

    tapped = type(type(engine).__name__, (type(engine),), {"run_backward": property(run_backward)})
    Variable._execution_engine = tapped()


def _look(
    frame: Any,
    caller: Any,
    nested: Callable[[], int],
    before: Before,
    run: Callable[..., Any],
    replaced: list[Callable[..., Any] | None],
) -> None:
    """Read what the engine is about to be called with; gradients of inputs are none."""
    try:
        if frame.f_code is not caller or nested() != -1:
            return
        given = frame.f_locals
        outputs, gradients, options = given["t_outputs"], given["args"][0], given["kwargs"]
        if _COPIES_LOCALS:
            given.clear()
        if options.get("accumulate_grad"):
            replaced.append(before(outputs, gradients, run, frame))
    except Exception as error:
        say_once(error)
