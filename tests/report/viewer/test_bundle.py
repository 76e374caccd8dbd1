import pytest

from bough.report.viewer.server import assets, bundle


def test_modules_stand_behind_what_they_need_and_share_only_what_they_export():
    modules = {
        "main.js": 'import { twice } from "./math.js";\nconst hidden = 3;\nshow(twice(hidden));\n',
        "math.js": "const hidden = 2;\nexport function twice(x) { return hidden * x; }\nexport const one = 1;\n",
    }
    text = bundle(modules, "main.js")
    assert text.index("module_math = ") < text.index("module_main = ")
    assert "const { twice } = module_math;" in text and "return { twice, one };" in text
    assert "import" not in text and "export" not in text


def test_circles_and_forms_that_cannot_be_bundled_are_found():
    circle = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(AssertionError, match=r"a.js → b.js → a.js"):
        bundle(circle, "a.js")
    for text in ('import * as b from "./b.js";\n', "export default 3;\n", "export { a };\n"):
        with pytest.raises(AssertionError, match="cannot be bundled"):
            bundle({"a.js": text}, "a.js")


def test_every_script_of_the_page_is_in_the_bundle():
    scripts = {name: text.decode() for name, text in assets().items() if name.endswith(".js")}
    text = bundle(scripts, "main.js")
    for name in scripts:
        assert f"const module_{name.removesuffix('.js')} = " in text


def test_no_asset_names_another_machine():
    for name, content in assets().items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name
        assert "innerHTML" not in text and "document.write" not in text and "eval(" not in text, name
