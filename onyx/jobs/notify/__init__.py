"""What leaves a runner for the outside: webhooks, W&B trackers, and the result file of a finished job.

Webhooks: `webhook_delivery.py` sends what is due, `signed_post.py` makes one request, `url_policy.py` decides which
hosts may be reached. W&B: `trackers.py` starts `tracker_process.py` per attempt. `result_csv.py` writes the result
file. May import `jobs.store`, `jobs.launch` and `training.contract`; never torch.
"""
