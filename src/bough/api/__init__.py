"""The Python API: every command as a function that takes names or objects and returns objects.

The functions are re-exported by `bough` itself. Their settings are the fields of the
command's `Config`; none is defined a second time here.
"""
