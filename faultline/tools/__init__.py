"""The tools behind the command line: replay, gradient, import-config and doctor. A tool is imported when its command runs."""
