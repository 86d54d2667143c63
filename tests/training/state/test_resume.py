"""Where an attempt begins."""

from tests.training.job import Job, inline, run_inline


def test_a_damaged_checkpoint_is_skipped(job: Job) -> None:
    run_inline(job)
    newest = job.dir / "checkpoints" / "update-00000020" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with inline(job) as run:
        assert run.progress.update == 15
