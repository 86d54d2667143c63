"""Models from a hub: config, tokenizer and safetensors, nothing else. Needs no torch."""

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
"""Fetched only for a model whose code the operator allows."""


def fetch(name: str, cache: Path, *, token: str | None, code: bool = False) -> Path:
    """The snapshot's directory in `cache`. An unreachable hub is no problem for what was fetched before."""
    from huggingface_hub import HfApi, snapshot_download

    # False and not None: without our own token nobody's login on this host is used for somebody's job.
    credential: str | bool = token or False
    patterns = [*PATTERNS, *(CODE_PATTERNS if code else ())]
    options: dict[str, Any] = {"repo_id": name, "cache_dir": cache, "allow_patterns": patterns, "token": credential}
    try:
        info = HfApi(token=credential).model_info(name)
    except Exception as error:  # the hub's client raises its own, its transport's and the system's
        if is_answer(error):
            raise _refused(name, error) from None
        return _cached(name, options)
    if not any(each.rfilename.endswith(".safetensors") for each in info.siblings or []):
        raise no_safetensors()
    try:
        return Path(snapshot_download(revision=info.sha, **options))
    except Exception:  # as above
        return _cached(name, options)


def is_answer(error: Exception) -> bool:
    """Whether the hub answered and said no, rather than not being reached."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(status, int) and 400 <= status < 500


def _cached(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(local_files_only=True, **options))
    except Exception as error:
        # Not the client's text: it names addresses and headers, and would be shown to users.
        raise ModelError(
            "hub_unreachable",
            f"the hub could not be reached for model {name!r} ({type(error).__name__}), and it was not fetched before: "
            "try again later, or give a directory under the operator's model root or onyx/tiny",
        ) from None


def _refused(name: str, error: Exception) -> ModelError:
    if type(error).__name__ == "GatedRepoError":
        return ModelError("model_gated", f"the hub gives model {name!r} only to those it knows: set a hub token")
    return ModelError("model_not_found", f"neither this host nor the hub has a model {name!r}")
