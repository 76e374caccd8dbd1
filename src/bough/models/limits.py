"""Model types that a part of Bough would get wrong or break on, by their name in transformers, with the reason.

What can be read off a model itself (kinds of layers, positions, sinks, the head) is checked
where it matters; only what cannot is listed here. The names are those of the text models.
"""

from __future__ import annotations

OWN_CACHE = "it works with the cache of transformers only"
# The local engine would break, in the middle of a collection; training is right.
NOT_IN_ENGINE = {
    "biogpt": OWN_CACHE,
    "codegen": OWN_CACHE,
    "ctrl": OWN_CACHE,
    "falcon": OWN_CACHE,
    "gpt_neox_japanese": OWN_CACHE,
    "gptj": OWN_CACHE,
    "hrm_text": OWN_CACHE,
    "opt": OWN_CACHE,
    "whisper": OWN_CACHE,
    "xglm": OWN_CACHE,
    "diffllama": "it takes values apart outside of its attention",
    "jetmoe": "its experts share keys outside of its attention",
    "gemma4_text": "the heads of its layers differ in size",
    "gemma4_unified_text": "the heads of its layers differ in size",
    "mimo_v2_flash": "the heads of its layers differ in size",
}
