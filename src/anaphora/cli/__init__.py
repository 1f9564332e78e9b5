"""The command line. A command is a few lines that call a room; rooms are imported when a command runs."""
