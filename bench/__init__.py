"""Figures of wheeld on this machine, beside its peers: `wheeld bench`, `make bench`."""
