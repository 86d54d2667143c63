"""Fine-tuning from Python without HTTP: the job runs in processes of its own, and this one never loads torch.

python examples/python_service.py     (keeps everything in ~/.onyx, or ONYX_HOME)
"""

import asyncio

from onyx.server.features.ads.optimized_finetuning import OptimizedFineTuningService


async def main() -> None:
    async with OptimizedFineTuningService() as service:
        result = await service.finetune_model_with_accumulation(
            model_name="onyx/tiny",
            dataset=[f"the square of {n} is {n * n}" for n in range(32)],
            training_config={"epochs": 2, "learning_rate": 1e-3},
            user_id=1,
            target_effective_batch_size=16,
        )
    assert result["success"], result["error"]
    print("transformers loads it from", result["model_path"])


if __name__ == "__main__":
    asyncio.run(main())
