"""Everything that waits: the loop, sign-in, the control commands. Sits on wheel and wal."""
