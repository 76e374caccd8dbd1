from bough.config.base import is_name


def test_a_name_is_one_part_of_a_path_and_leads_nowhere_else():
    assert all(map(is_name, ["a", "own-play", "_x", "1.5", "after-sft_2", "-", "a..b", "x" * 100]))
    others = ["", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a b", "a\n", "a\0", "é", "x" * 101, "a:b"]
    assert [name for name in others if is_name(name)] == []
