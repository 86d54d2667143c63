"""The job store: everything that must outlive a process, in SQLite or PostgreSQL.

Callers use one class, `Store` in store.py; each of its attributes is a concern with a file of its own (jobs.py,
claims.py, events.py …). lifecycle.py has the one way to change a job's status, tables.py the schema, database.py the
transactions. The store may import `onyx.jobs.{models,records,status,ids,errors}` and `onyx.training.contract`, never
torch. Start with store.py and lifecycle.py.
"""
