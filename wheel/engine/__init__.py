"""What decides, for the daemon and the test kit: no clock, no files, no sockets."""
