import hashlib
import json

from bough.files import derived_seed, json_digest, text_digest


def test_a_digest_has_the_size_that_was_asked_for_and_stays_the_same():
    assert text_digest("abc", size=8) == "d8bb14d833d59559"
    assert text_digest(b"abc", size=8) == text_digest("abc", size=8)
    assert text_digest("abd", size=8) != text_digest("abc", size=8)


def test_a_json_digest_is_that_of_the_compact_text():
    value = {"b": [1, 2.5, None], "a": "é"}
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert json_digest(value, size=6) == hashlib.blake2b(compact.encode(), digest_size=6).hexdigest()


def test_a_derived_seed_depends_on_the_seed_and_the_name_and_fits_every_generator():
    assert derived_seed(0, "task#1") == 33995510423540592
    assert len({derived_seed(seed, name) for seed in range(10) for name in "ab"}) == 20
    assert all(0 <= derived_seed(seed, "x") < 2**56 for seed in range(100))
