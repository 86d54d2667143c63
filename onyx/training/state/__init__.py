"""What an attempt leaves on the disk, and how the next one resumes from it to the bit.

Start at resume.py. checkpoint.py saves tensors and progress.py counters; journal.py has every change of steering since
the plan, as lines of events.jsonl (events.py); metrics.py writes metrics.csv. recorder.py is what rank 0 writes with.
Only resume.py imports a rank's module, to give all ranks one reading.
"""
