"""The page's modules as one script, for a file that stands alone.

The modules are written for this: every import is a list of plain names from a file
beside, and every export stands before a declaration. Each becomes a function of its own,
so that names do not meet. `bundle` says so where a module keeps to this not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let) )", re.MULTILINE)
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) +(\w+)", re.MULTILINE)
LEFT_OVER = re.compile(r"^(?:import|export)\b", re.MULTILINE)


def bundle(modules: Mapping[str, str], first: str) -> str:
    """`first` and all that it imports, each module behind those it needs, in a scope of its own with what it shares."""
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
    """The module as a function that returns what it exports; its imports are taken from the modules before."""
    imports = "".join(f"const {{ {names} }} = {_variable(of)};\n" for names, of in IMPORT.findall(text))
    exported = [m.group(1) for m in DECLARED.finditer(text) if m.group(0).startswith("export ")]
    body = EXPORT.sub("", IMPORT.sub("", text))
    assert not LEFT_OVER.search(body), f"{name}: an import or export that cannot be bundled"
    return f"const {_variable(name)} = (() => {{\n{imports}{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))
