"""Prepares a claimed job: a helper process checks its model and its data and makes the plan. It uses no device."""

import asyncio
import signal
from contextlib import suppress

from onyx.jobs.errors import LostAttempt
from onyx.jobs.files import read_json, write_json
from onyx.jobs.job_directory import serves
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec
from onyx.jobs.models import ClaimedJob
from onyx.jobs.retry import retry_until_available
from onyx.jobs.runner.device_offers import Offered, choose_devices, needs_of
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.status import Outcome, StopRequest
from onyx.training.contract.attempt import Failure, attempt_dir
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.prepared import HUB_TOKEN_VARIABLE, PreparedJob, PrepareRequest, Roots

TARGET = "onyx.training.prepare.main:main"


async def prepare(claimed: ClaimedJob, context: RunnerContext) -> None:
    """Take a job from `validating` to `queued`, or to `failed` with what the user must change."""
    chosen = choose_devices(context.offered, claimed.spec)
    wanted = len(claimed.spec.gpu_ids or ()) or claimed.spec.devices
    if len(chosen) < wanted:
        await _fail(claimed, context, _too_few(wanted, context.offered))
        return
    folder = attempt_dir(context.settings.job_dir(claimed.job.id), claimed.lease.attempt)
    request = PrepareRequest(
        spec=claimed.spec,
        roots=await _roots(context, claimed),
        devices=tuple(each.here for each in chosen),
        most_rows=context.settings.most_rows,
        out=folder,
    )
    write_json(folder / "request.json", request)
    # The lease is kept first: a fork server that still starts can take longer than a lease.
    async with LeaseKeeper(context.store, claimed.lease) as keeper:
        context.keepers.add(keeper)
        child = await context.launcher.start(_helper(context, request))
        try:
            child_exit = await _watch(child, keeper, context)
        finally:
            context.keepers.discard(keeper)
            child.close()
    if not keeper.lost:
        await _record(claimed, context, keeper, child_exit, chosen)


def _helper(context: RunnerContext, request: PrepareRequest) -> ChildSpec:
    token = context.settings.hub_token
    return ChildSpec(
        name="onyx-prepare",
        target=TARGET,
        arguments=(str(request.out / "request.json"),),
        log=request.out / "prepare.log",
        environment={HUB_TOKEN_VARIABLE: token.get_secret_value()} if token else {},
        niceness=Niceness.HELPER,
    )


async def _roots(context: RunnerContext, claimed: ClaimedJob) -> Roots:
    settings = context.settings
    data = [settings.home / "uploads"] + ([settings.data_root] if settings.data_root else [])
    return Roots(
        home=settings.home,
        models=settings.model_root,
        data=tuple(data),
        jobs=await _former_jobs(context, claimed),
        remote_code=settings.remote_code_models,
    )


async def _former_jobs(context: RunnerContext, claimed: ClaimedJob) -> tuple[str, ...]:
    """The job whose model this one continues, if its model is that of a former job of the same owner."""
    job_id = claimed.spec.model.partition(":")[0]
    former = await retry_until_available(lambda: context.store.jobs.get(job_id, claimed.job.owner))
    if former is None or not former.status.terminal or not serves(former, claimed.spec.model):
        return ()
    return (former.id,)


async def _watch(child: Child, keeper: LeaseKeeper, context: RunnerContext) -> ChildExit:
    """Wait for the helper's end; kill it when its plan is no longer wanted or it takes too long."""
    deadline = asyncio.get_running_loop().time() + context.settings.prepare_seconds
    waiting = asyncio.create_task(child.wait())
    while not waiting.done():
        child.beat()
        unwanted = keeper.lost or keeper.request is not None or context.stopping
        if unwanted or asyncio.get_running_loop().time() > deadline:
            child.send(signal.SIGKILL)
        await asyncio.wait({waiting}, timeout=0.2)
    return waiting.result()


async def _record(
    claimed: ClaimedJob, context: RunnerContext, keeper: LeaseKeeper, child_exit: ChildExit, chosen: tuple[Offered, ...]
) -> None:
    folder = attempt_dir(context.settings.job_dir(claimed.job.id), claimed.lease.attempt)
    prepared = read_json(folder / "prepared.json", PreparedJob)
    failure = read_json(folder / "error.json", Failure)
    store, lease = context.store, claimed.lease
    with suppress(LostAttempt):
        if child_exit.status == 0 and prepared is not None:
            document, needs = prepared.model_dump(mode="json"), needs_of(chosen, claimed.spec)
            await retry_until_available(
                lambda: store.attempts.report_prepared(lease, needs, document, warnings=prepared.warnings)
            )
        elif failure is not None:
            await retry_until_available(lambda: store.attempts.report_failed(lease, failure))
        elif keeper.request is StopRequest.CANCEL:
            await retry_until_available(lambda: store.attempts.report_cancelled(lease))
        else:
            outcome = Outcome.SAVED if context.stopping or keeper.request else Outcome.LOST
            await retry_until_available(lambda: store.attempts.release(lease, outcome))


async def _fail(claimed: ClaimedJob, context: RunnerContext, failure: Failure) -> None:
    with suppress(LostAttempt):
        await retry_until_available(lambda: context.store.attempts.report_failed(claimed.lease, failure))


def _too_few(wanted: int, offered: tuple[Offered, ...]) -> Failure:
    there = ", ".join(each.here.label for each in offered) or "none"
    return Failure(
        code="not_enough_devices",
        message=f"the job asks for {wanted} devices; this host has: {there}. Ask for fewer, "
        "or let the operator raise ONYX_CPU_DEVICES on a host without GPUs",
        param="world_size",
    )
