"""The page's modules as one script, for a self-contained file.

The modules are written for this: every import is a list of plain names from a file in
the same folder, and every export precedes a declaration. Each module becomes a function
of its own, so that names do not clash. `bundle` fails on a module that breaks these rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let) )", re.MULTILINE)
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) +(\w+)", re.MULTILINE)
LEFT_OVER = re.compile(r"^(?:import|export)\b", re.MULTILINE)


def bundle(modules: Mapping[str, str], first: str) -> str:
    """`first` and everything it imports, each module after those it needs and in a scope of its own."""
    order: list[str] = []
    _visit(first, modules, order, ())
    return "".join(_scoped(name, modules[name]) for name in order)


def _visit(name: str, modules: Mapping[str, str], order: list[str], path: tuple[str, ...]) -> None:
    assert name not in path, f"modules import each other: {' → '.join([*path, name])}"
    if name not in order:
        for _, needed in IMPORT.findall(modules[name]):
            _visit(needed, modules, order, (*path, name))
        order.append(name)


def _scoped(name: str, text: str) -> str:
    """The module as a function that returns its exports; its imports come from the modules before it."""
    imports = "".join(f"const {{ {names} }} = {_variable(of)};\n" for names, of in IMPORT.findall(text))
    exported = [m.group(1) for m in DECLARED.finditer(text) if m.group(0).startswith("export ")]
    body = EXPORT.sub("", IMPORT.sub("", text))
    assert not LEFT_OVER.search(body), f"{name}: an import or export that cannot be bundled"
    return f"const {_variable(name)} = (() => {{\n{imports}{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))
