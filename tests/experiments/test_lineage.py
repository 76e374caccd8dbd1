from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.lineage import add_generation


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "a"}', '{"generation": "0"}'])
def test_a_changed_lineage_is_named_by_its_line_and_kept(line: str, tmp_path: Path):
    file = tmp_path / "lineage.jsonl"
    text = '{"generation": 0}\n' + line + "\n"
    file.write_text(text)
    with pytest.raises(InputError, match=r"lineage\.jsonl:2: this is not a member's line; restore the file"):
        add_generation(file, [{"generation": 1}])
    assert file.read_text() == text
