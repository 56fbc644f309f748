"""The fixture of ``pytest --rankscope`` that audits a training step; see `rankscope.pytest_plugin`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from ..pytest_plugin import fail_if_not_allowed

if TYPE_CHECKING:
    from .gradients import StepAudit


@pytest.fixture  # it asks for `_rankscope`, which skips the test unless pytest has the option
def rankscope_step(_rankscope: None) -> Callable[..., StepAudit]:
    """Audit a training step on real Gloo ranks under DDP against one process with the whole batch."""

    def audited(
        module: Any,
        batch: tuple[Any, Any],
        loss: Callable[[Any, Any], Any],
        *,
        num_replicas: int = 2,
        step: Callable[[Any, Any, Any], object] | None = None,
        allow: Iterable[str] = (),
    ) -> StepAudit:
        """Run the step on `num_replicas` ranks, which share the batch of inputs and targets.

        ``step(ddp, inputs, targets)`` is your own forward and backward, by default that of ``loss(outputs, targets)``.
        `allow` has kinds of findings of `rankscope.train.gradients.audit_step`.
        """
        from .gradients import Work, audit_step  # here, because it imports torch, which other tests may not need

        try:
            inputs, targets = batch
        except (TypeError, ValueError):
            raise ValueError(f"batch must be a pair of inputs and targets, got {reprlib.repr(batch)}") from None
        audit = audit_step(Work(module, inputs, targets, loss), num_replicas, step)
        fail_if_not_allowed(audit, allow)
        return audit

    return audited
