# ruff: noqa: F401 - imported for the forked processes
"""What a fork server imports before it forks ranks: `import onyx.training.preload` is all.

transformers imports its parts lazily, at their first use, which would cost every rank seconds. Nothing here runs a
tensor operation, opens a device or starts a thread.
"""

import numpy.ctypeslib
import numpy.ma  # np.unique needs it
import peft.tuners.lora
import transformers.convert_slow_tokenizer
import transformers.generation
import transformers.modeling_utils
import transformers.models.auto.modeling_auto
import transformers.models.auto.tokenization_auto
import transformers.models.llama.modeling_llama
import transformers.tokenization_utils_tokenizers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import onyx.training.rank.main

# Compiles the patterns of all models, once: 0.1 s that no rank spends again.
get_checkpoint_conversion_mapping("llama")  # type: ignore[no-untyped-call]
