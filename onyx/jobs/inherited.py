"""What children get of this process's environment: all but the secrets, which whoever needs one is handed."""

import os

from onyx.settings import Settings

WANDB_API_KEY = "WANDB_API_KEY"
"""W&B's own name for its key."""


def inherited() -> dict[str, str]:
    """A model's own code, where the operator allows any, has no business with them."""
    withheld = Settings.secret_variables() | {WANDB_API_KEY}
    return {name: value for name, value in os.environ.items() if name not in withheld}
