"""The data directory: segments, judging at start, verify, repair. Knows bytes, never jobs."""
