"""The command line of the user's side: nothing in this package needs the server extra."""
