"""A Chromium without root: one way to get it per file.

`build(folder)` fills an empty folder, ends with the program `chromium` in it, and raises
`BoughError` with the reason where that is not possible. The folder may be moved afterwards.
"""
