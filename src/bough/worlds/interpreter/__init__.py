"""Code as a tool: problems to be solved with a Python interpreter that runs in a sandbox."""
