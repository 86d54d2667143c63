"""What an attempt leaves on the disk, and how the next one resumes from it to the bit.

Start at resume.py. checkpoint.py saves tensors and progress.py counters; journal.py has every change of steering since
the plan, as lines of events.jsonl (events.py). recorder.py is what rank 0 writes with. Imports the contract; ranks
import this room, not the other way round.
"""
