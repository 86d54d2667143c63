"""Runners claim, crash and come back as zombies, owners pause and resume, the clock jumps. In any order a job has at
most one live attempt, a device one holder, an end is final, and no event is lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from onyx.jobs.errors import LostAttempt, NotAllowedError
from onyx.jobs.models import DeviceNeed, Job, Lease
from onyx.jobs.status import JobStatus, Outcome
from tests.jobs.store.reference_model import Held, ReferenceModel, read_snapshot
from tests.jobs.store_harness import CPU, DEVICES, FAILURE, LEASE, RESULT, StoreHarness, line

T = TypeVar("T")
HOSTS = ("alpha", "alpha", "beta")  # two runners share the devices of one host
RUNNERS = st.integers(0, len(HOSTS) - 1)
PICK = st.integers(0, 10**6)
ENDS = ("prepared", "succeeded", "failed", "lost", "memory", "saved", "paused", "cancelled")


class Machine(ReferenceModel, RuleBasedStateMachine):
    """Runs each step on the store and on the model, and compares them."""

    url: str

    def __init__(self) -> None:
        ReferenceModel.__init__(self)
        RuleBasedStateMachine.__init__(self)
        self.loop = asyncio.Runner()
        self.harness = StoreHarness(self.url)
        self.store = self.harness.store
        self.run(self.harness.delete_all_rows())
        self.pids = len(HOSTS)
        self.runners = [self.run(self.harness.runner(host, pid)) for pid, host in enumerate(HOSTS)]
        self.start_in_the_middle()

    def start_in_the_middle(self) -> None:
        """Begin with a running, a waiting and a new job: short runs from an empty store rarely get that far."""
        for owner in ("ann", "bob"):
            self.create(owner)
            self.prepare(0, hangs=False)
        self.claim(0)
        self.train(0, 2, mirror=True)
        self.create("ann")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    # Owners

    @precondition(lambda self: len(self.jobs) < 5)
    @rule(owner=st.sampled_from(["ann", "bob"]))
    def create(self, owner: str) -> None:
        job = self.run(self.harness.job(owner))
        self.jobs.append(job.id)
        self.mirrored[job.id] = set()

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK, what=st.sampled_from(["cancel", "pause", "resume"]))
    def request(self, pick: int, what: str) -> None:
        job_id = self.jobs[pick % len(self.jobs)]
        requests = {
            "cancel": self.store.control.cancel,
            "pause": self.store.control.pause,
            "resume": self.store.control.resume,
        }
        try:
            job = self.run(requests[what](job_id))
        except NotAllowedError:
            return
        if job.status in (JobStatus.CANCELLED, JobStatus.PAUSED):
            self.lose(job)
        self.note(job)

    # Runners

    @rule(who=RUNNERS, hangs=st.booleans())
    def prepare(self, who: int, hangs: bool) -> None:
        claimed = self.run(self.store.claims.claim_validating(self.runners[who]))
        if claimed is None:
            return
        held = self.take(claimed, self.runners[who], HOSTS[who], JobStatus.VALIDATING)
        if not hangs:
            self.note(self.run(self.end_write(held.lease, "prepared")))
            held.live, held.reported = False, "prepared"

    @rule(who=RUNNERS)
    def claim(self, who: int) -> None:
        claimed = self.run(self.store.claims.claim_queued(self.runners[who], DEVICES))
        if claimed is None:
            return
        held = self.take(claimed, self.runners[who], HOSTS[who], JobStatus.RUNNING)
        for former in self.held:
            if former is not held and self.same_job(former, held):
                self.mirror_former(former, self.runners[who])

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def heartbeat(self, pick: int) -> None:
        held = self.pick(pick)
        self.write(held, self.store.attempts.heartbeat(held.lease))

    @precondition(lambda self: self.held)
    @rule(pick=PICK, update=st.integers(0, 9))
    def checkpoint(self, pick: int, update: int) -> None:
        held = self.pick(pick)
        self.write(held, self.store.attempts.report_checkpoint(held.lease, update))

    @precondition(lambda self: self.held)
    @rule(pick=PICK, count=st.integers(1, 3), mirror=st.booleans())
    def train(self, pick: int, count: int, mirror: bool) -> None:
        """Ranks append events; their runner mirrors them, unless it has died."""
        held = self.pick(pick)
        if held.live:
            held.file += [line(len(held.file) + place) for place in range(1, count + 1)]
        if mirror and self.write(held, self.store.events.mirror(held.lease, held.file)):
            self.mirrored[held.lease.job_id] |= {(held.lease.attempt, event.line) for event in held.file}

    @precondition(lambda self: self.held)
    @rule(pick=PICK, end=st.sampled_from(ENDS))
    def end(self, pick: int, end: str) -> None:
        held = self.pick(pick)
        if held.live and end == ("succeeded" if held.phase is JobStatus.VALIDATING else "prepared"):
            return
        repeated = held.reported == end and self.latest(held)
        try:
            job = self.run(self.end_write(held.lease, end))
        except LostAttempt:
            assert not held.live
            assert not repeated
            return
        assert held.live or repeated
        if held.live:
            held.live, held.reported = False, end
        self.note(job)

    @precondition(lambda self: not all(held.live for held in self.held))
    @rule(pick=PICK)
    def zombie_mirrors(self, pick: int) -> None:
        gone = [held for held in self.held if not held.live]
        held = gone[pick % len(gone)]
        again = any(each.live and each.runner == held.runner and self.same_job(each, held) for each in self.held)
        if not again:
            with pytest.raises(LostAttempt):
                self.mirror_former(held, held.runner)

    @rule(who=RUNNERS)
    def crash(self, who: int) -> None:
        """A runner's process dies, and the next runner on its host replaces it."""
        (dead,) = [each for each in self.run(self.store.runners.list()) if each.id == self.runners[who]]
        self.pids += 1
        self.runners[who] = self.run(self.harness.runner(HOSTS[who], self.pids))
        lost = {job.id for job in self.run(self.store.runners.replace_dead(self.runners[who], dead))}
        assert lost == {held.lease.job_id for held in self.held if held.live and held.runner == dead.id}
        self.end_lost(lost, who)

    @rule(who=RUNNERS)
    def expire(self, who: int) -> None:
        runner = self.run(self.store.runners.report_alive(self.runners[who]))
        lost = {job.id for job in self.run(self.store.runners.expire_leases(self.runners[who]))}
        assert runner.may_expire or not lost
        self.end_lost(lost, who)

    @rule(seconds=st.sampled_from([1.0, LEASE / 4, LEASE, LEASE * 3]), who=RUNNERS)
    def pass_time(self, seconds: float, who: int) -> None:
        """One runner keeps reaching the store, the others may not."""
        self.run(self.harness.pass_time(seconds, self.runners[who]))

    # What must be true, always

    @invariant()
    def the_store_agrees(self) -> None:
        attempts, devices, jobs, events = self.run(read_snapshot(self.store))
        self.check_leases(attempts, devices)
        self.check_jobs(jobs)
        self.check_events(events)

    def end_lost(self, job_ids: set[str], who: int) -> None:
        for held in self.held:
            if held.live and held.lease.job_id in job_ids:
                held.live = False
                if held.runner != self.runners[who]:
                    self.mirror_former(held, self.runners[who])

    def mirror_former(self, held: Held, runner: str) -> None:
        """The runner that takes over first mirrors the rest of the file, so that no event is lost."""
        lease = held.lease
        self.run(self.store.events.mirror_ended(runner, lease.job_id, lease.attempt, held.file))
        self.mirrored[lease.job_id] |= {(lease.attempt, event.line) for event in held.file}

    def write(self, held: Held, work: Coroutine[Any, Any, object]) -> bool:
        """Try a write; whether it succeeded. It must succeed exactly when the lease is live."""
        if held.live:
            self.run(work)
            return True
        with pytest.raises(LostAttempt):
            self.run(work)
        return False

    def end_write(self, lease: Lease, end: str) -> Coroutine[Any, Any, Job]:
        if end == "prepared":
            return self.store.attempts.report_prepared(lease, [DeviceNeed(kind=CPU)] * (1 + lease.attempt % 2), {})
        if end == "succeeded":
            return self.store.attempts.report_succeeded(lease, RESULT)
        if end == "failed":
            return self.store.attempts.report_failed(lease, FAILURE)
        if end == "paused":
            return self.store.attempts.report_paused(lease)
        return (
            self.store.attempts.report_cancelled(lease)
            if end == "cancelled"
            else self.store.attempts.release(lease, Outcome(end))
        )


def explore(url: str, examples: int, steps: int) -> None:
    machine = type("MachineOnOneDatabase", (Machine,), {"url": url})
    quiet = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet),
    )


def test_every_order_of_steps(url: str) -> None:
    explore(url, examples=10, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_order_of_steps_at_length(url: str) -> None:
    explore(url, examples=150, steps=60)
