"""`simulate` against SimPy: stores, processes and a barrier, span for span."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline import simulate_parts
from rankscope.timeline import Span


class Reference:
    """The same trainers as SimPy processes."""

    def __init__(self, load_s, steps, step_s, queue_size, num_loaders, barrier_s):
        self.clock = simpy.Environment()
        self.load_s, self.steps, self.step_s = load_s, steps, step_s
        self.queue_size, self.num_loaders, self.barrier_s = queue_size, num_loaders, barrier_s
        self.spans: list[Span] = []
        self.arrived, self.having, self.release = 0, 0, self.clock.event()
        for rank in range(len(load_s)):
            self.clock.process(self.trainer(rank))
        self.clock.run()

    def add(self, rank, lane, kind, item, start_s):
        self.spans.append(Span(rank, lane, kind, item, start_s, self.clock.now))

    def loader(self, rank, number, asked, loaded):
        """A worker of a DataLoader: it loads what its own queue asks for."""
        while True:
            part = yield asked.get()
            start = self.clock.now
            yield self.clock.timeout(self.load_s[rank][part])
            self.add(rank, f"loader {number}", "load", part, start)
            loaded[part].succeed()

    def parts(self, rank):
        """The parts, loaded here or asked for ahead: each that is taken asks for one more."""
        num_parts, to_ask = len(self.load_s[rank]), 0
        if self.queue_size is not None:
            loaded = [self.clock.event() for _ in range(num_parts)]
            queues = [simpy.Store(self.clock) for _ in range(self.num_loaders)]
            for number, asked in enumerate(queues):
                self.clock.process(self.loader(rank, number, asked, loaded))
            prefetch_factor = 1 + (self.queue_size + self.num_loaders - 1) // self.num_loaders
            to_ask = min(num_parts, prefetch_factor * self.num_loaders)
            for part in range(to_ask):
                queues[part % self.num_loaders].put(part)
        for part in range(num_parts):
            start = self.clock.now
            if self.queue_size is None:
                yield self.clock.timeout(self.load_s[rank][part])
                self.add(rank, "trainer", "load", part, start)
            else:
                yield loaded[part]
                self.add(rank, "trainer", "wait", part, start)
                if to_ask < num_parts:
                    queues[to_ask % self.num_loaders].put(to_ask)
                    to_ask += 1
            yield part

    def meet(self, has_batch):
        """All come; the last one lets all go."""
        self.arrived += 1
        self.having += has_batch
        release = self.release
        if self.arrived == len(self.load_s):
            self.release, having = self.clock.event(), self.having
            self.arrived = self.having = 0
            release.succeed(having)
        return release

    def trainer(self, rank):
        step, parts, left = 0, self.parts(rank), 0
        while True:
            while left == 0:  # the next part with a batch in it, if there is one
                value, event = None, next(parts, None)
                while isinstance(event, simpy.Event):
                    value = yield event
                    event = parts.send(value)
                if event is None:
                    break
                left = self.steps[rank][event]
            start = self.clock.now
            having = yield self.meet(left > 0)
            yield self.clock.timeout(self.barrier_s)
            self.add(rank, "trainer", "barrier", step, start)
            if not having:
                return
            if left:
                left -= 1
                start = self.clock.now
                yield self.clock.timeout(self.step_s[step])
                self.add(rank, "trainer", "step", step, start)
            step += 1


def times(timeline):
    found = {span[:4]: (span.start_s, span.stop_s) for span in timeline}
    assert len(found) == len(list(timeline))
    return found


seconds = st.floats(0.0, 3.0)


@st.composite
def shards(draw):
    """Seconds and steps of each part of each trainer."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    loads = [draw(st.lists(seconds, min_size=size, max_size=size)) for size in sizes]
    steps = [draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)) for size in sizes]
    return loads, steps


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@given(shards(), st.none() | st.integers(1, 4), st.integers(1, 4), st.floats(0.0, 0.5), st.data())
def test_every_span_is_where_simpy_has_it(shards, queue_size, num_loaders, barrier_s, data):
    loads, steps = shards
    most = max(map(sum, steps))
    step_s = data.draw(st.lists(seconds, min_size=max(most, 1), max_size=max(most, 1)))
    setting = {"queue_size": queue_size, "num_loaders": num_loaders, "barrier_s": barrier_s}
    timeline = simulate_parts(loads, steps, step_s, **setting)
    timeline.check()
    expected = times(Reference(loads, steps, step_s, *setting.values()).spans)
    found = times(timeline)
    assert found.keys() == expected.keys()
    for key, span in expected.items():
        assert found[key] == pytest.approx(span, abs=1e-9, rel=0), key


def test_the_reference_tells_queue_sizes_and_loaders_apart():
    """The comparison would be worth little if any two settings gave the same times."""
    loads, steps, step_s = [[3.0, 0.1, 0.1, 3.0, 0.1, 0.1, 3.0]], [[1] * 7], [1.0] * 7
    ends = [
        max(span.stop_s for span in Reference(loads, steps, step_s, queue_size, loaders, 0.0).spans)
        for queue_size, loaders in [(None, 1), (1, 1), (2, 1), (1, 2)]
    ]
    assert len(set(ends)) == 4
