"""Document 002's service class: it fine-tunes in processes of its own, configured with nothing but a home."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from onyx.jobs.runner.runner_lock import locked_by
from onyx.server.features.ads.optimized_finetuning import OptimizedFineTuningService
from onyx.settings import Settings
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for

TEXTS = [f"the square of {n} is {n * n}" for n in range(40)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all tests: the first service starts a runner, which the others use."""
    home = tmp_path_factory.mktemp("service")
    share_planner_cache(home)
    return home


def with_service(home: Path, story: Any) -> Any:
    async def run() -> Any:
        async with OptimizedFineTuningService(Settings(home=home, cpu_memory="3GB")) as service:
            return await asyncio.wait_for(story(service), PATIENCE)

    return asyncio.run(run())


def test_a_fine_tune_from_a_list_of_texts(home: Path) -> None:
    async def story(service: OptimizedFineTuningService) -> dict[str, Any]:
        result = await service.finetune_model_with_accumulation(
            model_name="onyx/tiny",
            dataset=TEXTS,
            training_config={"epochs": 2, "learning_rate": 1e-3, "weight_decay": 0.01},
            user_id=123,
            target_effective_batch_size=16,
            accumulation_steps=4,
        )
        stats = await service.get_accumulation_stats(result["training_id"])
        assert stats["success"] is True
        assert stats["stats"]["accumulation_steps"] == 4
        return result

    result = with_service(home, story)
    assert result["success"] is True, result
    assert result["training_id"].startswith("accumulation_")
    assert result["effective_batch_size"] == 16
    assert result["actual_batch_size_per_gpu"] == 4
    assert result["accumulation_steps"] == 4
    assert result["adjusted_learning_rate"] == 1e-3
    assert [entry["epoch"] for entry in result["training_history"]] == [1, 2]
    assert result["training_history"][1]["train_loss"] < result["training_history"][0]["train_loss"]
    assert {"best_loss", "training_time", "epochs", "gpu_stats", "accumulation_stats", "mp_stats"} <= set(result)
    assert {"mixed_precision_enabled", "memory_savings_gb", "scaler_scale"} <= set(result)
    json.dumps(result, allow_nan=False)
    model = AutoModelForCausalLM.from_pretrained(result["model_path"])
    tokenizer = AutoTokenizer.from_pretrained(result["model_path"])
    prompt = tokenizer("the square", return_tensors="pt")["input_ids"]
    assert model(prompt).logits.shape[:2] == prompt.shape


def test_large_batch_and_other_shapes_of_data(home: Path) -> None:
    async def story(service: OptimizedFineTuningService) -> dict[str, Any]:
        dataset = await service.prepare_dataset(TEXTS, "onyx/tiny", max_length=64)
        return await service.finetune_model_large_batch(
            model_name="onyx/tiny",
            dataset=dataset,
            training_config={"epochs": 1, "method": "lora", "lora_r": 4},
            user_id=1,
            target_batch_size=128,
        )

    result = with_service(home, story)
    assert result["success"] is True, result
    assert result["training_id"].startswith("large_batch_")
    assert result["effective_batch_size"] == 40  # what there is, not what was asked for
    assert (Path(result["model_path"]) / "adapter_model.safetensors").exists()


def test_what_cannot_work_is_said_and_not_retried(home: Path) -> None:
    async def story(service: OptimizedFineTuningService) -> None:
        result = await service.finetune_model_with_accumulation("nobody/nothing", TEXTS, {"epochs": 1}, 1)
        assert result["success"] is False
        assert "nobody/nothing" in result["error"]
        with pytest.raises(ValueError, match="epoch"):
            await service.finetune_model_with_accumulation("onyx/tiny", TEXTS, {"epoch": 1}, 1)
        with pytest.raises(ValueError, match="empty"):
            await service.finetune_model_with_accumulation("onyx/tiny", [], {}, 1)
        with pytest.raises(ValueError, match="rank must be 0"):
            await service.finetune_model_with_accumulation("onyx/tiny", TEXTS, {}, 1, rank=1)
        with pytest.raises(ValueError, match="Training ID nobody not found"):
            await service.get_accumulation_stats("nobody")

    with_service(home, story)


def test_a_runner_that_is_killed_is_replaced_while_a_process_waits(home: Path) -> None:
    before = attempts(home)

    def kill_runner() -> None:
        wait_for(lambda: attempts(home) > before, "the job trains")
        runner = locked_by(home / "run")
        assert runner is not None
        os.kill(runner.pid, signal.SIGKILL)

    async def story(service: OptimizedFineTuningService) -> dict[str, Any]:
        training = asyncio.create_task(
            service.finetune_model_with_accumulation("onyx/tiny", TEXTS, {"epochs": 40, "save_every_updates": 5}, 1)
        )
        await asyncio.to_thread(kill_runner)
        return await training

    result = with_service(home, story)
    assert result["success"] is True, result


def attempts(home: Path) -> set[Path]:
    """The event files of all attempts so far."""
    return set((home / "jobs").glob("*/attempts/*/events.jsonl"))


def test_a_batch_size_without_loading_anything(home: Path) -> None:
    async def story(service: OptimizedFineTuningService) -> None:
        answer = await service.calculate_optimal_batch_size("onyx/tiny", 64)
        assert answer["success"] is True, answer
        assert answer["effective_batch_size"] == 64
        assert answer["actual_batch_size_per_gpu"] * answer["accumulation_steps"] >= 64
        refused = await service.calculate_optimal_batch_size("onyx/tiny", 64, gpu_ids=[77])
        assert refused["success"] is False
        assert "No valid GPUs found" in refused["error"]

    with_service(home, story)


def test_the_service_never_imports_torch() -> None:
    code = "import sys; import onyx.server.features.ads.optimized_finetuning; print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"
