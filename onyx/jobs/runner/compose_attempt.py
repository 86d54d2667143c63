"""Composes an attempt from a claimed job: the file that its ranks read, and each rank as a process to launch."""

from pathlib import Path

from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.models import ClaimedJob
from onyx.jobs.runner.device_offers import Offered
from onyx.settings import Settings
from onyx.training.contract.attempt import Attempt, Share, attempt_dir, attempt_file
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.prepared import PreparedJob

TARGET = "onyx.training.rank.main:main"


def build_attempt(claimed: ClaimedJob, offered: tuple[Offered, ...], settings: Settings) -> Attempt:
    """The job's stored plan, on the devices that were claimed with it."""
    prepared = PreparedJob.model_validate(claimed.job.prepared)
    if prepared.planned is None:
        raise ValueError(f"{claimed.job.id} was prepared without a plan")
    job_dir = settings.job_dir(claimed.job.id)
    folder = attempt_dir(job_dir, claimed.lease.attempt)
    by_name = {each.lent.name: each for each in offered}
    lent = [by_name[device.name] for device in claimed.devices]
    return Attempt(
        job_id=claimed.job.id,
        number=claimed.lease.attempt,
        spec=claimed.spec,
        plan=prepared.planned.plan,
        shares=[_on_device(share, each) for share, each in zip(prepared.planned.shares, lent, strict=True)],
        memory_losses=claimed.job.memory_losses,
        precision=prepared.planned.precision,
        model_dir=prepared.model_dir,
        remote_code=prepared.remote_code,
        layout=prepared.planned.plan.get("layout", "padded"),
        compile_dir=settings.home / "compiled" if prepared.planned.plan.get("compile") else None,
        data_dir=prepared.data_dir,
        job_dir=job_dir,
        attempt_dir=folder,
        rendezvous=folder / "rendezvous",
        lease_seconds=settings.lease_seconds,
        grace_seconds=settings.grace_seconds,
        free_disk_bytes=settings.free_disk_bytes,
    )


def _on_device(share: Share, device: Offered) -> Share:
    return share.model_copy(update={"device": device.here.label, "uuid": device.here.uuid})


def rank_spec(attempt: Attempt, rank: int) -> ChildSpec:
    """One rank as a process: it sees its own device and no other."""
    share = attempt.shares[rank]
    return ChildSpec(
        name=f"onyx-rank-{rank}",
        target=TARGET,
        arguments=(str(attempt_file(attempt)), str(rank)),
        log=rank_log(attempt.attempt_dir, rank),
        environment={"CUDA_VISIBLE_DEVICES": share.uuid or "", "OMP_NUM_THREADS": str(share.threads)},
        niceness=Niceness.RANK,
    )


def rank_log(folder: Path, rank: int) -> Path:
    """A rank's standard output and error."""
    return folder / f"rank-{rank}.log"
