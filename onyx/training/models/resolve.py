"""From a model's name to a directory that transformers loads. A name reaches only paths that the operator allows."""

import re
from pathlib import Path

from onyx.training.contract import model_names
from onyx.training.contract.errors import ModelError
from onyx.training.contract.prepared import Roots
from onyx.training.models import hub, smollm2, tiny
from onyx.training.models.adapter import base_model, merge_adapter
from onyx.training.models.directory import check_directory, is_adapter, path_inside

JOB_NAME = re.compile(r"(?P<job>[A-Za-z0-9][A-Za-z0-9_-]*)(:(?P<snapshot>epoch-[0-9]+))?")
"""An earlier job's id, possibly with one of its snapshots: "ftjob-1a2b", "ftjob-1a2b:epoch-2"."""

DEEPEST = 8
"""The most adapters on top of each other. More mean that their bases form a circle."""


def resolve(name: str, roots: Roots, *, hub_token: str | None = None) -> Path:
    """The directory of the model with this name; ModelError if there is none that the job may use.

    Searched in this order: onyx/tiny, earlier jobs' models, the operator's model root, the SmolLM2 wheel, the hub.
    """
    return _resolve(name, roots, hub_token, DEEPEST)


def resolve_unmerged(name: str, roots: Roots, *, hub_token: str | None = None) -> tuple[Path, Path | None]:
    """The same without merging: the directory of the base model, and that of the adapter if `name` is one."""
    if name == model_names.TINY:
        return tiny.make_tiny(_models_dir(roots)), None
    path, root = _find(name, roots, hub_token)
    check_directory(path, root)
    return (_base(base_model(path), roots, hub_token, DEEPEST - 1), path) if is_adapter(path) else (path, None)


def allows_remote_code(name: str, roots: Roots) -> bool:
    """Whether the operator's setting allows this model's own code to run."""
    return name in roots.remote_code


def _resolve(name: str, roots: Roots, token: str | None, depth: int) -> Path:
    if name == model_names.TINY:
        return tiny.make_tiny(_models_dir(roots))
    path, root = _find(name, roots, token)
    check_directory(path, root)
    return _merged(path, name, roots, token, depth) if is_adapter(path) else path


def _find(name: str, roots: Roots, token: str | None) -> tuple[Path, Path]:
    """The directory, and the root that its links must not leave."""
    if job := _job_model(name, roots):
        return job, roots.home
    if local := _local(name, roots):
        return local
    if name in model_names.SMOLLM2:
        if gguf := model_names.smollm2_gguf():
            return smollm2.make_smollm2(_models_dir(roots), gguf), roots.home
        name = model_names.SMOLLM2[0]
    if not model_names.is_hub_name(name):
        raise ModelError("model_not_found", f"there is no model {name!r}: give a hub id (owner/name) or onyx/tiny")
    cache = _models_dir(roots) / "hub"
    return hub.fetch(name, cache, token=token, code=allows_remote_code(name, roots)), cache


def _local(name: str, roots: Roots) -> tuple[Path, Path] | None:
    looks_like_path = name.startswith(("/", "~", ".")) or "\\" in name or ".." in Path(name).parts or "\0" in name
    if roots.models is not None:
        found = path_inside(roots.models, name)
        return (found, roots.models) if found else None
    if looks_like_path:
        raise ModelError("model_outside_root", "the operator has set no model root: give a hub id or onyx/tiny")
    return None


def _job_model(name: str, roots: Roots) -> Path | None:
    match = JOB_NAME.fullmatch(name)
    if match is None or match["job"] not in roots.jobs:
        return None
    job = roots.home / "jobs" / match["job"]
    path = job / "snapshots" / match["snapshot"] if match["snapshot"] else job / "model"
    if not path.is_dir():
        raise ModelError("model_not_found", f"job {match['job']} has not published this model, or it was deleted")
    return path


def _merged(adapter: Path, name: str, roots: Roots, token: str | None, depth: int) -> Path:
    if depth == 0:
        raise ModelError("adapter_unsupported", "the bases of this adapter form a circle")
    base = _base(base_model(adapter), roots, token, depth - 1)
    return merge_adapter(adapter, base, _models_dir(roots), remote_code=allows_remote_code(name, roots))


def _base(base: str, roots: Roots, token: str | None, depth: int) -> Path:
    """An adapter names as its base the directory that it was trained on, or a model like any other."""
    for root in (_models_dir(roots), roots.home / "jobs", roots.models):
        if root is not None and Path(base).is_absolute() and Path(base).resolve().is_relative_to(root.resolve()):
            path = Path(base).resolve()
            if not path.is_dir():
                raise ModelError("model_not_found", "the adapter's base model no longer exists")
            check_directory(path, root)
            return _merged(path, base, roots, token, depth) if is_adapter(path) else path
    return _resolve(base, roots, token, depth)


def _models_dir(roots: Roots) -> Path:
    return roots.home / "models"
