import subprocess

from bough.worlds.web import browsers


def test_the_program_finds_its_libraries_and_fonts_wherever_the_folder_is_moved(tmp_path):
    draft = tmp_path / "draft of it"
    (draft / "bin").mkdir(parents=True)
    program = draft / "bin" / "shell"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\necho "$FONTCONFIG_FILE"\necho "$@"\n')
    libraries = [draft / "lib", draft / "more"]
    browsers.write(draft, program, libraries=libraries, fonts=draft / "fonts")
    final = draft.rename(tmp_path / "final")
    command = [str(final / "chromium"), "--flag", "two words"]
    for given, kept in (({}, ""), ({"LD_LIBRARY_PATH": "/mine"}, ":/mine")):
        said = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **given}, capture_output=True, text=True)
        assert said.stdout.splitlines() == [
            f"{final}/lib:{final}/more{kept}",
            f"{final}/fonts.conf",
            "--flag two words",
        ]
    assert '<dir prefix="relative">fonts</dir>' in (final / "fonts.conf").read_text()
