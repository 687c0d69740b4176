"""Schedules written in files: our own TOML, crontabs, Kubernetes CronJobs, Celery's beat.

Every reader is a pure function from text to definitions, and says of each where it stands. What a
reader cannot take over it names, with a word for the kind and a sentence; what it cannot read
refuses the whole file.
"""
