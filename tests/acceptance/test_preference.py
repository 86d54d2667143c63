"""Direct preference optimisation: from pairs of answers to an adapter that prefers the preferred ones."""

from pathlib import Path
from typing import Any

from onyx.server.features.ads.optimized_finetuning import OptimizedFineTuningService
from onyx.training.contract.metrics_csv import read_rows
from tests.acceptance.test_service import with_service

PAIRS = [
    {
        "input": {"messages": [{"role": "user", "content": f"What is {n} + {n}?"}]},
        "preferred_output": [{"role": "assistant", "content": f"It is {2 * n}."}],
        "non_preferred_output": [{"role": "assistant", "content": "I do not know, and I do not care."}],
    }
    for n in range(24)
]


def test_a_job_of_pairs(tmp_path: Path) -> None:
    async def story(service: OptimizedFineTuningService) -> dict[str, Any]:
        return await service.finetune_model_with_accumulation(
            model_name="onyx/tiny",
            dataset=PAIRS,
            training_config={
                "objective": "dpo",
                "epochs": 4,
                "lora_r": 4,
                "learning_rate": 0.01,
                "evaluation_fraction": 0.2,
            },
            user_id=1,
            target_effective_batch_size=4,
        )

    result = with_service(tmp_path, story)
    assert result["success"] is True, result
    model = Path(result["model_path"])
    assert (model / "adapter_config.json").is_file()
    rows = read_rows(model.parent / "metrics.csv")
    assert float(rows[-1]["preference_accuracy"]) == 1
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert result["training_history"][-1]["evaluation_accuracy"] == 1
