# ruff: noqa: F401 - imported so that forked processes have them
"""The fork server imports this before it forks ranks.

transformers imports its parts at their first use, which would cost every rank seconds. Nothing here runs a tensor
operation, opens a device or starts a thread.
"""

import numpy.ctypeslib
import numpy.ma  # np.unique imports it
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

# Compiles the patterns of all models, which would take each rank 0.1 s.
get_checkpoint_conversion_mapping("llama")  # type: ignore[no-untyped-call]
