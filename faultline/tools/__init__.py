"""The tools behind the command line: replay, gradient, import-config and doctor. None is imported before its command runs."""
