"""What `import bough` offers, and that it is quick."""

import ast
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import bough
from bough.commands import table
from tests.blocks import ROOT

SOURCE = Path(str(bough.__file__))


def test_every_public_name_is_there_once_in_each_list():
    assert sorted(bough.__all__) == [name for name in dir(bough) if name != "__version__"]
    tree = ast.parse(SOURCE.read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    commands = {name.split()[-1]: row.module for name, row in table.TABLE.items() if not name.startswith("runs ")}
    assert for_checkers.keys() == set(bough.__all__)
    assert for_checkers == {name: bough._HOME.get(name) or commands[name] for name in bough.__all__}


@pytest.mark.parametrize("name", bough.__all__)
def test_every_public_name_can_be_used(name: str):
    assert getattr(bough, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bough.nothing  # noqa: B018


def test_importing_it_loads_neither_torch_nor_pydantic():
    code = "import bough, sys; dir(bough); print({'torch', 'transformers', 'pydantic', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_version_stands_in_pyproject_alone():
    assert bough.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert bough.__version__ not in SOURCE.read_text()


def test_the_package_says_that_it_is_typed():
    spec = find_spec("bough")
    assert spec is not None and spec.origin is not None and (Path(spec.origin).parent / "py.typed").is_file()
