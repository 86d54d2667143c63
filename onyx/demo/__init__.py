"""`make demo`: starts a real service, fine-tunes a model over HTTP, and shows its answers before and after.

Start reading in __main__.py; service.py starts and stops the service, lesson.py holds what is taught, answers.py asks a
model in a process of its own. The demo uses `onyx.cli` as any client could; only answers.py imports torch.
"""
