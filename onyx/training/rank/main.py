"""One training process. `python -m onyx.training.rank.main <attempt.json> <rank> [lifeline descriptor]`

It has no access to the database. Its results are in the attempt's directory, and its exit status says how it ended.
"""

import logging
import sys
import traceback
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from onyx import fs
from onyx.accumulation.exchange import Ballot
from onyx.accumulation.loss_scaling import Scaling, TorchScaling, Unscaled
from onyx.accumulation.precision import Precision, grad_scaler
from onyx.memory.devices.cpu import is_out_of_memory
from onyx.training.contract.attempt import Attempt, Exit, Share
from onyx.training.contract.child_process import (
    Niceness,
    StopFlag,
    lower_priority,
    watch_inherited_lifeline,
    watch_lifeline,
)
from onyx.training.contract.errors import UserError, disk_full, is_disk_full
from onyx.training.data.token_store import open_data
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.loss.objective import loss_and_correct, objective_of
from onyx.training.models.load import load_model
from onyx.training.models.tokenizer import load_tokenizer
from onyx.training.packing.joined_attention import attend_joined
from onyx.training.packing.order import Order
from onyx.training.rank.epoch import finish
from onyx.training.rank.loop import Ending, train
from onyx.training.rank.optimizer import optimizer_for
from onyx.training.rank.out_of_memory import ThrashDetector
from onyx.training.rank.rank_group import Ranks, StoppedWhileWaitingError, join, leave
from onyx.training.rank.run import Run, Throughput
from onyx.training.rank.startup import device_of, ready_device
from onyx.training.rank.step import RankStep
from onyx.training.state import checkpoint
from onyx.training.state.config_changes import ConfigChanges
from onyx.training.state.events import Events
from onyx.training.state.recorder import Recorder
from onyx.training.state.resume import find_resume_point, start_or_resume

logger = logging.getLogger(__name__)


LOST = 1
"""Exit status of a failure that another attempt may not have."""


def main(attempt_path: str | Path, rank: int | str, descriptor: int | str | None = None) -> int:
    """Train, and return the exit status."""
    rank = int(rank)
    stop = StopFlag().listen()
    attempt = Attempt.model_validate_json(Path(attempt_path).read_bytes())
    _set_up_process(rank)
    if descriptor is not None:
        watch_lifeline(int(descriptor), attempt.lease_seconds)
    else:
        watch_inherited_lifeline(attempt.lease_seconds)
    try:
        ending = _train(attempt, rank, stop)
    except StoppedWhileWaitingError:
        return Exit.SAVED
    except UserError as error:
        return _write_error(attempt, error)
    except Exception as error:
        traceback.print_exc()
        if is_disk_full(error):
            return _write_error(attempt, disk_full(error))
        return Exit.MEMORY if is_out_of_memory(error) else LOST
    return Exit.DONE if ending is Ending.DONE else Exit.SAVED


def _train(attempt: Attempt, rank: int, stop: StopFlag) -> Ending:
    share = attempt.shares[rank]
    ready_device(share, deterministic=attempt.spec.training.deterministic)
    ranks = join(attempt, rank, device_of(share), stop)
    try:
        run = set_up(attempt, ranks, share, stop)
        with closing(run.recorder):
            ending = train(run)
            if ending is Ending.DONE:
                finish(run)
        ranks.vote(Ballot())  # all ranks end alike: those that are done wait here for the one that still writes
    finally:
        leave(ranks)
    return ending


def set_up(attempt: Attempt, ranks: Ranks, share: Share, stop: StopFlag) -> Run:
    """Load model, data, optimizer and progress at the point where the last attempt left the job."""
    events = Events(attempt.attempt_dir / "events.jsonl" if ranks.first else None)
    point = find_resume_point(attempt, ranks)
    progress, journal = start_or_resume(attempt, point, events)
    step = _rank_step(attempt, share, stop, progress.scaler)
    optimizer = optimizer_for(step.model, attempt.spec.training)
    if point.checkpoint is not None:
        checkpoint.restore(point.checkpoint, step.model, optimizer)
    data = step.samples
    return Run(
        attempt=attempt,
        ranks=ranks,
        step=step,
        optimizer=optimizer,
        order=Order(count=len(data.lengths), seed=attempt.spec.training.seed),
        progress=progress,
        journal=journal,
        config_changes=ConfigChanges(attempt.attempt_dir / "control.json"),
        recorder=Recorder(attempt, events, progress, first=ranks.first),
        thrash=ThrashDetector(),
        throughput=Throughput(),
        evaluation=open_data(attempt.data_dir).evaluation,
        tokenizer=load_tokenizer(attempt.model_dir, remote_code=attempt.remote_code) if ranks.first else None,
    )


def _rank_step(attempt: Attempt, share: Share, stop: StopFlag, scaler: dict[str, Any]) -> RankStep:
    spec = attempt.spec.training
    device = device_of(share)
    model = load_model(
        attempt.model_dir,
        method=spec.method,
        lora=spec.lora,
        precision=attempt.precision,
        gradient_checkpointing=spec.gradient_checkpointing,
        seed=spec.seed,
        device=device,
        remote_code=attempt.remote_code,
    )
    joined = attempt.layout == "joined"
    if joined:
        attend_joined(model)
    compiled = CompiledLoss(attempt.compile_dir) if attempt.compile_dir is not None else None
    return RankStep(
        model=model,
        samples=open_data(attempt.data_dir),
        objective=objective_of(spec, compiled or loss_and_correct, joined=joined),
        joined=joined,
        compiled=compiled,
        device=device,
        precision=attempt.precision,
        scaling=_scaling(attempt, device, scaler),
        seed=spec.seed,
        stop=stop,
    )


def _scaling(attempt: Attempt, device: torch.device, state: dict[str, Any]) -> Scaling:
    if attempt.precision != "fp16":
        return Unscaled()
    scaler = grad_scaler(Precision.FP16, device)
    if state:
        scaler.load_state_dict(state)
    return TorchScaling(scaler)


def _set_up_process(rank: int) -> None:
    """Set the process's name, priority and logging."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"onyx-rank-{rank}")
    lower_priority(Niceness.RANK)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _write_error(attempt: Attempt, error: UserError) -> int:
    """Write error.json, which says what the user can change, and return the exit status."""
    logger.error("%s: %s", error.code, error.message, extra={"action": "failed"})
    with suppress(OSError):  # on a full disk there is only the exit status
        fs.write_text(attempt.attempt_dir / "error.json", error.failure().model_dump_json(indent=1))
    return Exit.USER_ERROR


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
