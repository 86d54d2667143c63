"""The names of precisions, apart from `model.py` because specs and plans name them without torch."""

from typing import Literal

Precision = Literal["float32", "bf16", "fp16"]
"""bf16 and fp16: what forward computes in, and the dtype of frozen weights. What is trained stays float32."""
