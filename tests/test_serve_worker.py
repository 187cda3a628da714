"""One thread samples for all requests at once, and a failure of the engine is not the end of it."""

from __future__ import annotations

import asyncio
import queue

import pytest
import torch

from pettingllms.policies.chat import Chat
from pettingllms.samplers.base import SamplingParams
from pettingllms.serving import completing
from pettingllms.serving.completing import Completing, News
from pettingllms.serving.worker import QueueFull, Stopped, Worker
from tests.tiny_lm import tiny_model, tiny_tokenizer

torch.set_num_threads(1)
CHAT = Chat(tiny_tokenizer(), [2])


class Engine:
    """A model that counts its uses, waits for leave at the first one, and fails where told to."""

    def __init__(self):
        self.model, self.uses, self.failing = tiny_model(), 0, False
        self.go: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self, policy):
        self.uses += 1
        if self.uses == 1:
            self.go.get()
        if self.failing:
            self.failing = False
            raise RuntimeError("out of memory")
        return self.model


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def worker(engine):
    opened = Worker(engine, {"a": CHAT}, most_waiting=20, tokens_per_batch=300)
    yield opened
    engine.go.put(None)
    opened.close(30)
    assert not opened.running


def a_job(seed=0, n=1, tokens=10, prompt=(5, 6)):
    heard: queue.SimpleQueue[News] = queue.SimpleQueue()
    params = SamplingParams(tokens)
    return Completing("a", [prompt], n, params, seed, CHAT, heard.put), heard


def ended(heard):
    """Waits for the last that is heard of a job: None, or an error."""
    while isinstance(news := heard.get(timeout=50), list):
        pass
    return news


def test_requests_share_their_steps(worker, engine):
    first, heard_first = a_job(tokens=30)
    worker.submit(first)  # is held in its first step until all others are there
    while worker.waiting:
        pass
    jobs = [a_job(seed) for seed in range(20)]
    for job, _ in jobs:
        worker.submit(job)
    engine.go.put(None)
    assert [ended(heard) for _, heard in [(first, heard_first), *jobs]] == [None] * 21
    sampled = sum(len(job.choices[0].tokens) for job, _ in jobs)
    assert sampled > 60
    # The first alone takes 30 steps, one more each time that somebody joins.
    assert engine.uses <= 33


@pytest.mark.slow
def test_what_does_not_fit_waits_and_is_sampled_like_the_rest(worker, engine):
    engine.go.put(None)
    wide, heard = a_job(n=30, tokens=48)  # six rows fill the cache
    worker.submit(wide)
    assert ended(heard) is None
    again, heard = a_job(n=30, tokens=48)
    worker.submit(again)
    assert ended(heard) is None
    texts = [choice.text for choice in wide.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 30


@pytest.mark.slow
def test_a_request_with_many_completions_holds_up_nobody(worker, engine):
    wide, heard_wide = a_job(n=19, tokens=48)
    worker.submit(wide)
    while not worker.rows:
        pass
    jobs = [a_job(seed, tokens=5) for seed in range(2)]
    for job, _ in jobs:
        worker.submit(job)
    engine.go.put(None)
    assert [ended(heard) for _, heard in jobs] == [None, None]
    assert not any(choice.finish for choice in wide.choices[10:])  # whose turn came later
    assert ended(heard_wide) is None


def test_what_nobody_reads_is_not_kept_without_bound(worker, engine, monkeypatch):
    monkeypatch.setattr(completing, "MOST_UNREAD", 4)

    async def unread():
        inbox = completing.Inbox(pieces=True, leave=lambda: worker.leave(job))
        job = Completing("a", [(5, 6)], 1, SamplingParams(200), 0, CHAT, inbox)
        worker.submit(job)
        engine.go.put(None)
        while worker.waiting or worker.rows:  # the event loop is held up, as by a client
            pass
        with pytest.raises(Stopped, match="4 events were not read"):
            [news async for news in inbox.pieces()]
        return len(job.choices[0].tokens)

    assert asyncio.run(unread()) < 10


def test_a_queue_that_is_full_refuses_and_one_that_was_left_has_room(worker, engine):
    worker.submit(a_job()[0])
    while worker.waiting:
        pass
    jobs = [a_job(seed) for seed in range(20)]
    for job, _ in jobs:
        worker.submit(job)
    with pytest.raises(QueueFull, match="20 completions are waiting already"):
        worker.submit(a_job()[0])
    worker.leave(jobs[3][0])
    worker.submit(a_job()[0])
    engine.go.put(None)


def test_a_failure_is_told_to_those_it_hits_and_the_next_is_served(worker, engine):
    engine.failing = True
    job, heard = a_job()
    worker.submit(job)
    engine.go.put(None)
    error = ended(heard)
    assert isinstance(error, Stopped)
    assert "sampling failed: out of memory" in str(error)
    job, heard = a_job()
    worker.submit(job)
    assert ended(heard) is None


def test_closing_fails_those_who_wait_and_those_who_come(worker, engine):
    jobs = [a_job(seed, tokens=900) for seed in range(5)]
    for job, _ in jobs:
        worker.submit(job)
    worker.close(0)
    engine.go.put(None)
    assert all(isinstance(ended(heard), Stopped) for _, heard in jobs)
    with pytest.raises(Stopped):
        worker.submit(a_job()[0])
