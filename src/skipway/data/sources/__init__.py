"""One file, one data set."""
