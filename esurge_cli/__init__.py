"""The command line: files, text and people."""
