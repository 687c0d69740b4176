"""The command line of the daemon: serve, wal, token."""
