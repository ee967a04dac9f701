"""Linear layers whose weights an op may read in their place: nothing else happens in their call."""

from __future__ import annotations

from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def is_plain_linear(module: object) -> bool:
    """Say whether a call of a module is nn.Linear's product: no subclass, hook or own forward."""
    return type(module) is nn.Linear and not is_changed(module)


def is_changed(module: nn.Module) -> bool:
    """Say whether hooks or a forward of its own change what a module's class computes."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in _HOOKS)
