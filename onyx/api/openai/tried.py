"""From a model's name to one that can be tried: the caller's own, or a base model that is here."""

from pathlib import Path

from onyx.api.caller import Caller
from onyx.api.desk import Desk
from onyx.api.openai.bases import may_be_base
from onyx.api.openai.errors import no_model
from onyx.api.openai.fine_tuned import find_model, is_fine_tuned
from onyx.jobs.ids import is_id
from onyx.jobs.published import serves
from onyx.jobs.trying import Tried
from onyx.settings import Settings
from onyx.training.models import smollm2
from onyx.training.models.hub import is_hub_name

_TINY = "onyx/tiny"


async def tried_model(name: str, desk: Desk, caller: Caller) -> Tried:
    """`ft:…` names, jobs' ids (`<id>:epoch-2` for a snapshot) and base models; 404 for anything else."""
    if is_fine_tuned(name):
        found = await find_model(name, desk, caller)
        if found is not None:
            return Tried(found.spec_model, jobs=(found.job.id,))
    elif is_id(job_id := name.partition(":")[0]):
        job = await desk.store.get(job_id, caller.sees)
        if job is not None and serves(job, name):
            return Tried(name, jobs=(job.id,))
    elif may_be_base(name, desk.settings) and _is_here(name, desk.settings):
        return Tried(name)
    raise no_model(name)


def _is_here(name: str, settings: Settings) -> bool:
    """Whether nothing needs fetching: a question must not begin a download of many gigabytes. A job may."""
    root = settings.model_root
    if name == _TINY or name in smollm2.NAMES or (root is not None and (root / name).is_dir()):
        return True
    return is_hub_name(name) and _cached(name, settings).is_dir()


def _cached(name: str, settings: Settings) -> Path:
    """Where the hub's client keeps what jobs have fetched."""
    return settings.home / "models" / "hub" / f"models--{name.replace('/', '--')}" / "snapshots"
