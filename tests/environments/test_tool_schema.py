from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from bough.environments.tools import ToolSchema


class Colour(Enum):
    RED = "red"


class Place(BaseModel):
    title: str


class Tools:
    def plan(self, title: str, day: date, size: Literal["s", "m"] = "s", *, place: Place | None = None) -> None:
        """Plans something.

        More about it.

        Args:
            title: What it is called,
                in a few words.
            day (date): When.

        Returns:
            Nothing: not a parameter.
        """

    def paint(self, colour: Colour, coats: Annotated[int, Field(ge=1, description="How many.")] = 1) -> None:
        """Paints."""

    def silent(self, a: int) -> None:
        pass

    def untyped(self, a) -> None:  # type: ignore[no-untyped-def]
        """Does."""

    def open_ended(self, *words: str) -> None:
        """Does."""

    def strange(self, a: object()) -> None:  # type: ignore[valid-type]
        """Does."""

    def misnamed(self, a: int) -> None:
        """Does.

        Args:
            b: Not there.
        """


def test_signature_and_docstring_make_the_schema():
    function = ToolSchema.of(Tools, "plan").to_json()["function"]
    assert function["name"] == "plan" and function["description"] == "Plans something.\n\nMore about it."
    properties = function["parameters"]["properties"]
    assert properties["title"] == {"type": "string", "description": "What it is called, in a few words."}
    assert properties["day"] == {"type": "string", "format": "date", "description": "When."}
    assert properties["size"] == {"type": "string", "enum": ["s", "m"], "default": "s"}
    assert function["parameters"]["required"] == ["title", "day"]
    assert function["parameters"]["$defs"]["Place"]["properties"] == {"title": {"type": "string"}}


def test_arguments_become_what_the_method_declares():
    schema = ToolSchema.of(Tools, "plan")
    read = schema.read({"title": "Party", "day": "2026-05-01", "place": {"title": "Garden"}})
    assert read == {"title": "Party", "day": date(2026, 5, 1), "place": Place(title="Garden")}
    assert ToolSchema.of(Tools, "paint").read({"colour": "red"}) == {"colour": Colour.RED}


@pytest.mark.parametrize(
    "arguments", [{}, {"colour": "blue"}, {"colour": "red", "coats": 0}, {"colour": "red", "coats": "2"}]
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any]):
    with pytest.raises(ValueError, match="validation error"):
        ToolSchema.of(Tools, "paint").read(arguments)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("silent", r"tool Tools\.silent needs a docstring"),
        ("untyped", "parameter a needs a type annotation"),
        ("open_ended", "cannot be filled in by an agent"),
        ("strange", "cannot be described as JSON"),
        ("misnamed", "describes 'b', which is not a parameter"),
    ],
)
def test_an_author_reads_what_is_missing(name: str, complaint: str):
    with pytest.raises(TypeError, match=complaint):
        ToolSchema.of(Tools, name)
