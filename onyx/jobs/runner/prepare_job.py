"""Preparing a job: a helper process looks at its model and its data and makes the plan. No device is taken."""

import asyncio
import signal
from contextlib import suppress

from onyx.jobs.errors import LostAttempt
from onyx.jobs.files import read_json, write_json
from onyx.jobs.job_directory import serves
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec
from onyx.jobs.models import ClaimedJob
from onyx.jobs.runner.device_offers import Offered, choose_devices, needs_of
from onyx.jobs.runner.lease_keeper import LeaseKeeper, retry_until_available
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.status import Outcome, StopRequest
from onyx.training.contract import niceness
from onyx.training.contract.attempt import Failure, attempt_dir
from onyx.training.contract.prepared import HUB_TOKEN_VARIABLE, PreparedJob, PrepareRequest, Roots

TARGET = "onyx.training.prepare.main:main"


async def prepare(claimed: ClaimedJob, bench: RunnerContext) -> None:
    """From `validating` to `queued`, or to `failed` with what the user must change."""
    chosen = choose_devices(bench.offered, claimed.spec)
    wanted = len(claimed.spec.gpu_ids or ()) or claimed.spec.devices
    if len(chosen) < wanted:
        await _fail(claimed, bench, _too_few(wanted, bench.offered))
        return
    folder = attempt_dir(bench.settings.job_dir(claimed.job.id), claimed.lease.attempt)
    request = PrepareRequest(
        spec=claimed.spec,
        roots=await _roots(bench, claimed),
        devices=tuple(each.here for each in chosen),
        most_rows=bench.settings.most_rows,
        out=folder,
    )
    write_json(folder / "request.json", request)
    async with LeaseKeeper(bench.store, claimed.lease) as hold:  # first: a cold template can take longer than a lease
        bench.holds.add(hold)
        child = await bench.launcher.start(_work(bench, request))
        try:
            ended = await _watch(child, hold, bench)
        finally:
            bench.holds.discard(hold)
            child.close()
    if not hold.lost:
        await _report(claimed, bench, hold, ended, chosen)


def _work(bench: RunnerContext, request: PrepareRequest) -> ChildSpec:
    token = bench.settings.hub_token
    return ChildSpec(
        name="onyx-prepare",
        target=TARGET,
        arguments=(str(request.out / "request.json"),),
        log=request.out / "prepare.log",
        environment={HUB_TOKEN_VARIABLE: token.get_secret_value()} if token else {},
        niceness=niceness.HELPER,
    )


async def _roots(bench: RunnerContext, claimed: ClaimedJob) -> Roots:
    settings = bench.settings
    own = [settings.home / "uploads"] + ([settings.data_root] if settings.data_root else [])
    return Roots(
        home=settings.home,
        models=settings.model_root,
        data=tuple(own),
        jobs=await _former_jobs(bench, claimed),
        remote_code=settings.remote_code_models,
    )


async def _former_jobs(bench: RunnerContext, claimed: ClaimedJob) -> tuple[str, ...]:
    """The job whose model is the base of this one, if that is what its model names and both are the same owner's."""
    job_id = claimed.spec.model.partition(":")[0]
    former = await retry_until_available(lambda: bench.store.jobs.get(job_id, claimed.job.owner))
    if former is None or not former.status.terminal or not serves(former, claimed.spec.model):
        return ()
    return (former.id,)


async def _watch(child: Child, hold: LeaseKeeper, bench: RunnerContext) -> ChildExit:
    """Until it ends, is no longer wanted, or takes too long."""
    deadline = asyncio.get_running_loop().time() + bench.settings.prepare_seconds
    waiting = asyncio.create_task(child.wait())
    while not waiting.done():
        child.beat()
        unwanted = hold.lost or hold.request is not None or bench.stopping
        if unwanted or asyncio.get_running_loop().time() > deadline:
            child.send(signal.SIGKILL)
        await asyncio.wait({waiting}, timeout=0.2)
    return waiting.result()


async def _report(
    claimed: ClaimedJob, bench: RunnerContext, hold: LeaseKeeper, ended: ChildExit, chosen: tuple[Offered, ...]
) -> None:
    folder = attempt_dir(bench.settings.job_dir(claimed.job.id), claimed.lease.attempt)
    prepared = read_json(folder / "prepared.json", PreparedJob)
    failure = read_json(folder / "error.json", Failure)
    store, lease = bench.store, claimed.lease
    with suppress(LostAttempt):
        if ended.status == 0 and prepared is not None:
            document, needs = prepared.model_dump(mode="json"), needs_of(chosen, claimed.spec)
            await retry_until_available(
                lambda: store.attempts.report_prepared(lease, needs, document, warnings=prepared.warnings)
            )
        elif failure is not None:
            await retry_until_available(lambda: store.attempts.report_failed(lease, failure))
        elif hold.request is StopRequest.CANCEL:
            await retry_until_available(lambda: store.attempts.report_cancelled(lease))
        else:
            outcome = Outcome.SAVED if bench.stopping or hold.request else Outcome.LOST
            await retry_until_available(lambda: store.attempts.release(lease, outcome))


async def _fail(claimed: ClaimedJob, bench: RunnerContext, failure: Failure) -> None:
    with suppress(LostAttempt):
        await retry_until_available(lambda: bench.store.attempts.report_failed(claimed.lease, failure))


def _too_few(wanted: int, offered: tuple[Offered, ...]) -> Failure:
    there = ", ".join(each.here.label for each in offered) or "none"
    return Failure(
        code="not_enough_devices",
        message=f"the job asks for {wanted} devices; this host has: {there}. Ask for fewer, "
        "or let the operator raise ONYX_CPU_DEVICES on a host without GPUs",
        param="world_size",
    )
