"""``pytest --rankscope``: audits of your sampler, your loader and your training step, as fixtures of your own tests.

Installed with rankscope. Without the option nothing large is imported, and tests that use a fixture of it are skipped:

    def test_our_sampler(rankscope_sampler):
        rankscope_sampler(lambda num_ranks, rank: OurSampler(DATASET, num_ranks, rank), dataset_size=1000)

    def test_our_loader(rankscope_loader):
        rankscope_loader(make_loader(), allow=["short_last_batch"])

    def test_our_step(rankscope_step):
        rankscope_step(OurModel(), (inputs, targets), our_loss)

A test fails with the findings, one per line. `allow` names the kinds of findings that you accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .sampling.audits.audit import Audit
    from .sampling.audits.loader_audit import LoaderAudit
    from .train.gradients.audit import StepAudit


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    words = "run tests that use rankscope_sampler, rankscope_loader and rankscope_step; they are skipped without it"
    parser.getgroup("rankscope").addoption("--rankscope", action="store_true", help=words)


@pytest.fixture
def _rankscope(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--rankscope"):
        pytest.skip("needs pytest --rankscope")


@pytest.fixture
def rankscope_sampler(_rankscope: None) -> Callable[..., Audit]:
    """Audit the samples that all ranks read: duplicates, lost samples, unequal numbers, repeated orders."""

    def audited(
        make_sampler: Callable[[int, int], Iterable[int]],
        *,
        dataset_size: int,
        num_ranks: int = 8,
        epochs: int = 3,
        allow: Iterable[str] = (),
    ) -> Audit:
        """Make a sampler for each rank by ``make_sampler(num_ranks, rank)``, and audit it over the epochs.

        As in a training loop, a sampler is made once. If it has ``set_epoch``, that is called before each epoch.
        `allow` takes kinds of `rankscope.sampling.audit`.
        """
        from .common.checks import function, whole
        from .sampling import Assignment, audit

        function("make_sampler", make_sampler, "of the number of ranks and a rank")
        whole("num_ranks", num_ranks, 1)
        whole("epochs", epochs, 1)
        samplers = [make_sampler(num_ranks, rank) for rank in range(num_ranks)]
        audit_of_samplers = audit(Assignment.collect(samplers, dataset_size, epoch) for epoch in range(epochs))
        _fail_if_not_allowed(audit_of_samplers, allow)
        return audit_of_samplers

    return audited


@pytest.fixture
def rankscope_loader(_rankscope: None) -> Callable[..., LoaderAudit]:
    """Audit a DataLoader's batches and its workers' random numbers."""

    def audited(loader: Any, *, allow: Iterable[str] = ()) -> LoaderAudit:
        """Audit two epochs; `allow` takes kinds of `rankscope.sampling.audit_loader`."""
        from .sampling import audit_loader

        audit_of_loader = audit_loader(loader)
        _fail_if_not_allowed(audit_of_loader, allow)
        return audit_of_loader

    return audited


@pytest.fixture
def rankscope_step(_rankscope: None) -> Callable[..., StepAudit]:
    """Audit a training step on real Gloo ranks under DDP against one process with the whole batch."""

    def audited(
        module: Any,
        batch: tuple[Any, Any],
        loss: Callable[[Any, Any], Any],
        *,
        num_ranks: int = 2,
        step: Callable[[Any, Any, Any], object] | None = None,
        allow: Iterable[str] = (),
    ) -> StepAudit:
        """Run the step on `num_ranks` ranks, which share the batch of inputs and targets.

        ``step(ddp, inputs, targets)`` is your own forward and backward, by default that of ``loss(outputs, targets)``.
        `allow` has kinds of findings of `rankscope.train.gradients.audit_step`.
        """
        from .train.gradients import Work, audit_step

        inputs, targets = batch
        audit = audit_step(Work(module, inputs, targets, loss), num_ranks, step)
        _fail_if_not_allowed(audit, allow)
        return audit

    return audited


def _fail_if_not_allowed(audited: Any, allow: Iterable[str]) -> None:
    """Fail the test with the findings that are not allowed."""
    __tracebackhide__ = True  # pytest leaves this function out of the traceback
    lines = [f"{finding.kind}: {finding.message}" for finding in audited.not_allowed(allow)]
    if lines:
        pytest.fail("\n".join(["rankscope found:", *lines]), pytrace=False)
