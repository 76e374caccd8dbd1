"""A Python installation, a virtual environment and a copy of Bough in one folder, as a clone under /tmp has them."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
LEFT_OUT = shutil.ignore_patterns("test", "tests", "site-packages", "dist-packages", "idlelib", "ensurepip", "*.a")


def build(folder: Path) -> Path:
    """Makes all of it in `folder`; the Python of its virtual environment, which has a package named `marker`."""
    folder.chmod(0o755)
    base, real = folder / "base", Path(os.path.realpath(sys.base_prefix))
    for name in ("stdlib", "platstdlib"):
        library = Path(os.path.realpath(sysconfig.get_path(name, vars={"base": str(real), "platbase": str(real)})))
        copy = base / library.relative_to(real)
        if not copy.exists():
            shutil.copytree(library, copy, symlinks=True, ignore=LEFT_OUT, copy_function=_link)
    for library in Path(sysconfig.get_config_var("LIBDIR")).glob("libpython*.so*"):
        (base / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, base / "lib" / library.name, follow_symlinks=False)
    (base / "bin").mkdir(parents=True)
    python = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(os.path.realpath(sys._base_executable), python)  # type: ignore[attr-defined]
    environment = folder / "clone" / ".venv"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True, env={"PATH": "/usr/bin:/bin"})
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "marker.py").write_text("import os\nword = 'from the environment'\nplace = os.path.dirname(__file__)\n")
    shutil.copytree(SOURCE / "bough", folder / "clone" / "src" / "bough", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "canary").write_text("the host's")
    (folder / "clone" / "canary").write_text("the host's")
    return environment / "bin" / "python"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file of somebody else's
        shutil.copy2(source, target)
