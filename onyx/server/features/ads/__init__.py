"""The documented import paths of the gradient accumulation system.

`gradient_accumulation.py` is the library, `gradient_accumulation_api.py` the router, `optimized_finetuning.py` the job
service. They only re-export: start reading in `onyx.accumulation.ads`, `onyx.api` and `onyx.jobs.service`.
"""
