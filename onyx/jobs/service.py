"""The library's fine-tuning service. It creates jobs and waits for them; a runner and its ranks do the work."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from onyx.jobs.batch_size import optimal_batch_size
from onyx.jobs.errors import StoreError
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.models import ConfigChange
from onyx.jobs.presenters import accumulation_stats, training_answer
from onyx.jobs.retry import retry_until_available
from onyx.jobs.spec_builder import PreparedTexts, data_fields, job_spec
from onyx.jobs.status import JobStatus
from onyx.memory.devices.gpus import gpu_info, list_gpus_async
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

DEFAULT_STEPS = 4
DEFAULT_TARGET = 32


class OptimizedFineTuningService:
    """Fine-tunes models and returns the documented answers. Needs no configuration."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._home: Home | None = None
        self._opening = asyncio.Lock()
        self._current: str | None = None

    async def setup_gradient_accumulation(
        self,
        target_effective_batch_size: int | None = None,
        accumulation_steps: int | None = None,
        training_config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Store a config for later, under a new id."""
        steps = accumulation_steps or DEFAULT_STEPS
        config = {
            "accumulation_steps": steps,
            "target_effective_batch_size": target_effective_batch_size,
            **(training_config or {}),
        }
        home = await self._open_home()
        stored = await home.store.configs.put(self._owner(None), config)
        return {
            "training_id": stored.id,
            "config": stored.config,
            "target_effective_batch_size": target_effective_batch_size,
            "accumulation_steps": steps,
        }

    async def finetune_model_with_accumulation(
        self,
        model_name: str,
        dataset: Any,
        training_config: Mapping[str, Any],
        user_id: int | str,
        target_effective_batch_size: int = DEFAULT_TARGET,
        accumulation_steps: int | None = None,
        distributed: bool = False,
        world_size: int = 1,
        rank: int = 0,
    ) -> dict[str, Any]:
        """Fine-tune, and wait for the result."""
        if rank != 0:
            raise ValueError("rank must be 0: call this once, Onyx starts every rank itself")
        home = await self._open_home()
        spec = job_spec(
            model=model_name,
            data=data_fields(dataset, home.settings.home),
            training=training_config,
            window=target_effective_batch_size,
            accumulation_steps=accumulation_steps,
            devices=world_size if distributed else 1,
            labels={"user_id": user_id},
        )
        return await self._run(spec, user_id, JobKind.ACCUMULATION)

    async def finetune_model_large_batch(
        self,
        model_name: str,
        dataset: Any,
        training_config: Mapping[str, Any],
        user_id: int | str,
        target_batch_size: int = 64,
        max_memory_usage: float = 0.9,
    ) -> dict[str, Any]:
        """Fine-tune with the largest micro-batch that fits."""
        home = await self._open_home()
        spec = job_spec(
            model=model_name,
            data=data_fields(dataset, home.settings.home),
            training=training_config,
            window=target_batch_size,
            max_memory_usage=max_memory_usage,
            labels={"user_id": user_id},
        )
        return await self._run(spec, user_id, JobKind.LARGE_BATCH)

    async def calculate_optimal_batch_size(
        self, model_name: str, target_effective_batch_size: int, gpu_ids: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """The planner's answer for a model, without loading it."""
        try:
            return await optimal_batch_size(model_name, target_effective_batch_size, gpu_ids, self._settings)
        except ValueError as error:
            return {"success": False, "error": str(error)}

    async def get_accumulation_stats(self, training_id: str) -> dict[str, Any]:
        """Statistics of a job."""
        home = await self._open_home()
        job = await home.store.jobs.get(training_id)
        if job is None:
            raise ValueError(f"Training ID {training_id} not found")
        stats = accumulation_stats(job, await home.store.events.list_metrics(training_id))
        return {"success": True, "training_id": training_id, "stats": stats}

    async def update_accumulation_config(self, training_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Change N or clipping of a running job at its next window, or a stored config."""
        home = await self._open_home()
        try:
            if await home.store.jobs.get(training_id) is not None:
                await home.reconfigure(training_id, ConfigChange.model_validate(dict(config)))
            elif await home.store.configs.get(training_id) is not None:
                await home.store.configs.update(training_id, dict(config))
            else:
                raise ValueError(f"Training ID {training_id} not found")
        except StoreError as error:
            raise ValueError(str(error)) from error
        return {"success": True, "training_id": training_id, "message": "Configuration updated successfully"}

    async def get_gpu_stats(self) -> dict[str, Any]:
        """The GPUs of this host, and the training that this service waits for."""
        gpus = await list_gpus_async()
        return {
            "available_gpus": [gpu.index for gpu in gpus],
            "gpu_info": gpu_info(gpus),
            "config": self._settings.model_dump(mode="json", exclude={"hub_token", "database_url"}),
            "current_trainer": self._current,
        }

    async def cleanup_gpu_resources(self) -> None:
        """Close the store. The ranks free their devices when a job ends."""
        if self._home is not None:
            await self._home.close()
            self._home = None

    async def prepare_dataset(
        self, texts: Sequence[str], model_name: str, max_length: int = 512, batch_size: int = 32
    ) -> PreparedTexts:
        """Texts for a later job. The job tokenises them before it takes a device."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError("texts must be a list of texts")
        return PreparedTexts(tuple(texts), model_name, max_length, batch_size)

    async def _run(self, spec: JobSpec, user_id: int | str, kind: JobKind) -> dict[str, Any]:
        home = await self._open_home()
        job = await home.submit(spec, self._owner(user_id), kind)
        self._current = job.id
        try:
            job = await retry_until_available(lambda: home.wait(job.id))  # survives an outage of the store
        finally:
            self._current = None
        metrics = await home.store.events.list_metrics(job.id)
        answer = training_answer(job, metrics, await list_gpus_async(), self._settings)
        return answer | {"success": job.status is JobStatus.SUCCEEDED}

    async def _open_home(self) -> Home:
        async with self._opening:
            if self._home is None:
                self._home = await Home.open(self._settings)
            return self._home

    @staticmethod
    def _owner(user_id: int | str | None) -> str:
        return f"user:{user_id}" if user_id is not None else "local"

    async def __aenter__(self) -> "OptimizedFineTuningService":
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(StoreError):
            await self.cleanup_gpu_resources()
