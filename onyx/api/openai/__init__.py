"""OpenAI's API under /v1: files, fine-tuning jobs, models and chat, over the same store as the documented API.

Start reading in router.py; routes/ has one file per resource, schemas/ their bodies and answers. job_request.py turns a
body into a JobSpec, presenters.py a job into an answer, chat_request.py a chat body into a question to a model.
May import onyx.api (not its routes), onyx.jobs, onyx.settings and the torch-free parts of onyx.training.
"""
