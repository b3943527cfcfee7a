"""The tools behind commands such as `faultline replay`, gradient and import-config. A tool is imported when its command runs."""
