"""Files are not flushed to the disk: no test cuts the power, and thousands of flushes take 3 ms each.

Programs that tests start with `subprocess` flush as they always do. `tests/test_disk.py` and
`tests/data/test_writer.py` test what is flushed, and when.
"""

import os


def never_wait() -> None:
    os.fsync = os.fstat  # type: ignore[assignment]  # a closed file is still an error
