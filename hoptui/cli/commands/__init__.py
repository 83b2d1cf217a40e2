"""One module for each command of the command line, with the command's name."""
