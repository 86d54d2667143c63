"""The preparing helper process: it reads a request and writes a result."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.training.contract.attempt import Exit, Failure
from onyx.training.contract.prepared import HUB_TOKEN_VARIABLE, PreparedJob, PrepareRequest, Roots
from onyx.training.contract.spec import DataSpec, JobSpec, LoraSpec, Objective, TrainingSpec
from onyx.training.data.token_store import PreparedSamples
from onyx.training.export.publish import write_model
from onyx.training.models.load import load_model
from onyx.training.models.tiny import make_tiny
from onyx.training.prepare.main import main

TOKEN = "hf_secretsecretsecret"  # noqa: S105 - the tests search for it


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONYX_HOME", "TOKENIZERS_PARALLELISM"):  # main sets them for its process
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(HUB_TOKEN_VARIABLE, TOKEN)


def run(
    home: Path,
    out: Path,
    *,
    model: str = "onyx/tiny",
    models: Path | None = None,
    jobs: tuple[str, ...] = (),
    objective: Objective = "sft",
    **data: Any,
) -> int:
    spec = JobSpec(model=model, data=DataSpec(**data), training=TrainingSpec(objective=objective))
    request = PrepareRequest(spec=spec, roots=Roots(home=home, models=models, jobs=jobs), out=out / "attempt")
    (out / "request.json").write_text(request.model_dump_json())
    return main(str(out / "request.json"))


def failure(out: Path) -> Failure:
    assert not (out / "attempt" / "prepared.json").exists()
    return Failure.model_validate_json((out / "attempt" / "error.json").read_bytes())


def test_a_good_request_is_prepared(home: Path, tmp_path: Path) -> None:
    assert run(home, tmp_path, texts=["hello", "good bye"], evaluation_fraction=0.5) == Exit.DONE
    job = PreparedJob.model_validate_json((tmp_path / "attempt" / "prepared.json").read_bytes())
    assert (job.samples, job.evaluation_samples, job.planned) == (1, 1, None)
    assert (job.model_dir / "model.safetensors").is_file()
    assert len(PreparedSamples.open(job.data_dir)) == 1
    assert job.data_dir.is_relative_to(home / "data")
    assert not (tmp_path / "attempt" / "error.json").exists()


def test_each_bad_line_is_in_the_error(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{oops\n{"messages": 3}\n')
    assert run(home, tmp_path, path=str(tmp_path / "a.jsonl")) == Exit.USER_ERROR
    found = failure(tmp_path)
    assert (found.code, found.param) == ("invalid_training_file", "data")
    assert [(each["line"], each["code"]) for each in found.findings] == [
        (2, "invalid_json"),
        (3, "missing_messages_list"),
    ]


def test_a_model_outside_the_root_is_a_user_error(home: Path, tmp_path: Path) -> None:
    assert run(home, tmp_path, model="../../etc", texts=["a"]) == Exit.USER_ERROR
    assert (failure(tmp_path).code, failure(tmp_path).param) == ("model_outside_root", "model")


def test_the_hub_token_is_in_no_file(home: Path, tmp_path: Path) -> None:
    run(home, tmp_path, texts=["hello"])
    run(home, tmp_path, model="no-such/model", texts=["hello"])
    for root in (home, tmp_path):
        for path in root.rglob("*"):
            assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_a_length_beyond_the_models_positions_is_refused(home: Path, tmp_path: Path) -> None:
    assert run(home, tmp_path, texts=["a"], max_length=4096) == Exit.USER_ERROR
    assert (failure(tmp_path).code, failure(tmp_path).param) == ("max_length", "data.max_length")


def changed(tmp_path: Path, **changes: Any) -> Path:
    """onyx/tiny with another config, in a model root."""
    root = tmp_path / "root"
    shutil.copytree(make_tiny(tmp_path / "made"), root / "changed")
    config = json.loads((root / "changed" / "config.json").read_text())
    (root / "changed" / "config.json").write_text(json.dumps({**config, **changes}))
    return root


def test_a_tokenizer_of_another_model_is_refused(home: Path, tmp_path: Path) -> None:
    root = changed(tmp_path, vocab_size=100, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    assert run(home, tmp_path, model="changed", models=root, texts=["hello"]) == Exit.USER_ERROR
    assert failure(tmp_path).code == "tokenizer_mismatch"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "unknown-type", "auto_map": {"AutoConfig": "evil.Config"}}, "remote_code_refused"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "model_not_causal"),
        ({"hidden_size": 63}, "model_unreadable"),
        ({"quantization_config": {"quant_method": "gptq"}}, "model_quantized"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(
    home: Path, tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    root = changed(tmp_path, **changes)
    (root / "changed" / "evil.py").write_text("raise SystemExit('remote code ran')")
    assert run(home, tmp_path, model="changed", models=root, texts=["hello"]) == Exit.USER_ERROR
    assert failure(tmp_path).code == code


def test_dpo_on_an_earlier_jobs_adapter_starts_from_the_merged_model(home: Path, tmp_path: Path) -> None:
    """With the new adapter switched off it must be the reference model, so the old adapter is merged."""
    base = load_model(make_tiny(home / "models"), method="lora", lora=LoraSpec(r=2))
    adapter = home / "jobs" / "ftjob-1" / "model"
    for name, each in base.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each.data, generator=torch.Generator().manual_seed(0))
    write_model(adapter, base, None)
    pair: Any = {"prompt": "a", "chosen": "b", "rejected": "cd"}
    assert run(home, tmp_path, model="ftjob-1", jobs=("ftjob-1",), objective="dpo", rows=[pair]) == Exit.DONE
    job = PreparedJob.model_validate_json((tmp_path / "attempt" / "prepared.json").read_bytes())
    assert job.samples == 1
    assert not (job.model_dir / "adapter_config.json").exists()
    merged, tokens = load_model(job.model_dir).eval(), torch.arange(20)[None]
    torch.testing.assert_close(
        merged(input_ids=tokens).logits, base.eval()(input_ids=tokens).logits, rtol=1e-4, atol=1e-4
    )
