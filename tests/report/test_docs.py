import re
from pathlib import Path

from huggingface_hub import ModelCard

ROOT = Path(__file__).parents[2]


def test_the_example_is_a_card_and_names_no_folder_of_anybodys():
    card = ModelCard.load(ROOT / "docs/example-card.md")
    assert card.data.library_name == "peft" and card.data.eval_results
    assert not re.search(r"/(home|root|tmp|Users|work|mnt|var)/", card.content)
