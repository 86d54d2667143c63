"""Downloads models from the hub: only config, tokenizer and safetensors. Needs no torch."""

from pathlib import Path
from typing import Any

from onyx.training.contract.errors import ModelError
from onyx.training.models.directory import no_safetensors

PATTERNS = (
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "adapter_config.json",
)
CODE_PATTERNS = ("*.py",)
"""Downloaded only for a model whose code the operator allows."""


def fetch(name: str, cache: Path, *, token: str | None, code: bool = False) -> Path:
    """The model's directory in `cache`. If the hub is unreachable, an earlier download is used."""
    from huggingface_hub import HfApi, snapshot_download

    # False and not None: without a token of Onyx, the login of a user of this host must not be used for a job.
    credential: str | bool = token or False
    patterns = [*PATTERNS, *(CODE_PATTERNS if code else ())]
    options: dict[str, Any] = {"repo_id": name, "cache_dir": cache, "allow_patterns": patterns, "token": credential}
    try:
        info = HfApi(token=credential).model_info(name)
    except Exception as error:  # the hub's client raises errors of its own, of its transport and of the system
        if is_refusal(error):
            raise _refused(name, error) from None
        return _cached(name, options)
    if not any(each.rfilename.endswith(".safetensors") for each in info.siblings or []):
        raise no_safetensors()
    try:
        return Path(snapshot_download(revision=info.sha, **options))
    except Exception:  # as above
        return _cached(name, options)


def is_refusal(error: Exception) -> bool:
    """Whether the hub was reached and refused the request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(status, int) and 400 <= status < 500


def _cached(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(local_files_only=True, **options))
    except Exception as error:
        # Users see this message, and the hub client's own text names addresses and headers.
        raise ModelError(
            "hub_unreachable",
            f"the hub could not be reached for model {name!r} ({type(error).__name__}), which was not downloaded "
            "before: try again later, or give a directory under the operator's model root or onyx/tiny",
        ) from None


def _refused(name: str, error: Exception) -> ModelError:
    if type(error).__name__ == "GatedRepoError":
        return ModelError("model_gated", f"model {name!r} is gated: set a hub token of an account with access to it")
    return ModelError("model_not_found", f"neither this host nor the hub has a model {name!r}")
