from __future__ import annotations

from typing import Any

from bough.worlds.functions.benchmark import tool, tools


def function(**properties: Any) -> dict[str, Any]:
    parameters = {"type": "dict", "properties": properties, "required": [*properties][:1]}
    return {"name": "math.area", "description": "Area.", "parameters": parameters, "response": {"type": "dict"}}


def test_a_function_becomes_a_tool_of_plain_json_types():
    side = {"type": "float", "description": "In cm.", "default": 1.5}
    made = tool(function(side=side, exact={"type": "boolean"}), "simple_python")
    assert made == {
        "type": "function",
        "function": {
            "name": "math_area",
            "description": "Area. Note that the provided function is in Python 3 syntax.",
            "parameters": {
                "type": "object",
                "properties": {
                    "side": {"type": "number", "description": "In cm. This is a float type value.", "default": 1.5},
                    "exact": {"type": "boolean"},
                },
                "required": ["side"],
            },
        },
    }


def test_nested_types_are_translated_too():
    point = {"type": "dict", "properties": {"x": {"type": "float"}}, "required": ["x"]}
    given = function(points={"type": "tuple", "items": point}, kind={"type": "any", "enum": ["a"]}, other={})
    properties = tool(given, "multiple")["function"]["parameters"]["properties"]
    assert properties["points"]["type"] == "array"
    assert properties["points"]["items"]["type"] == "object" and properties["points"]["items"]["required"] == ["x"]
    assert properties["points"]["items"]["properties"]["x"]["type"] == "number"
    assert properties["kind"] == {"type": "string", "enum": ["a"]} and properties["other"] == {"type": "string"}


def test_values_of_other_languages_are_strings_that_name_their_type():
    given = function(ids={"type": "ArrayList", "items": {"type": "long"}, "description": "Ids."}, x={"type": "any"})
    (made,) = tools([given], "simple_java")
    assert made["function"]["description"].endswith("in Java 8 SDK syntax.")
    assert made["function"]["parameters"]["properties"] == {
        "ids": {
            "type": "string",
            "description": "Ids. This is Java ArrayList type parameter in string representation. "
            "The list elements are of type long; they are not in string representation.",
        },
        "x": {
            "type": "string",
            "description": "This parameter can be of any type of Java object in string representation.",
        },
    }
    options = {"type": "dict", "properties": {"passive": {"type": "Boolean"}}}
    (made,) = tools([function(options=options)], "simple_javascript")
    description = made["function"]["parameters"]["properties"]["options"]["description"]
    assert "JavaScript dict type" in description and '{"passive": {"type": "Boolean"}}' in description
