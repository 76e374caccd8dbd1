import pytest

from bough.curation.demonstrations import DemosConfig, GroupsConfig
from bough.curation.rounds import PairsConfig
from bough.errors import InputError

FILES = {"file": "runs/collect", "output": "out.jsonl"}


def test_caps_and_shares_are_words_or_mappings():
    config = PairsConfig.load(None, FILES | {"caps": ["loop=3", "parting=0"], "shares": {"loop": 0.5}})
    assert config.failure_modes.caps == {"loop": 3, "parting": 0} and config.failure_modes.shares == {"loop": 0.5}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (PairsConfig, {"caps": ["loop=-1"]}),
        (PairsConfig, {"caps": ["loop"]}),
        (PairsConfig, {"shares": ["loop=1.5"]}),
        (PairsConfig, {"shares": ["loop=0"]}),
        (PairsConfig, {"kinds": ["episodes"]}),
        (DemosConfig, {"per_task": "0"}),
        (GroupsConfig, {"size": "1"}),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type[PairsConfig], given: dict[str, object]):
    with pytest.raises(InputError, match=next(iter(given)).replace("_", ".")):
        kind.load(None, FILES | given)


def test_settings_go_to_a_file_and_back(tmp_path):
    config = PairsConfig(**FILES, caps={"loop": 3}, kinds=["parting"])
    (tmp_path / "pairs.yaml").write_text(config.to_yaml())
    assert PairsConfig.load(tmp_path / "pairs.yaml") == config
