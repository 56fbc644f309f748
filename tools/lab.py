"""Open JupyterLab on copies of the notebooks, which are yours to run and change, on this machine only.

    python tools/lab.py [--edit] [arguments of JupyterLab ...]

With `--edit` it opens the notebooks themselves, for those who write them. Either way it trusts the notebooks as the
repository has them, because JupyterLab shows no SVG of a notebook that it does not trust.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from copies import names, refresh, trust, unchanged  # next to this script
from jupyter_core.paths import jupyter_data_dir

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
COPIES = ROOT / "my_notebooks"
EDITING = ROOT / "tools" / "editing"  # a folder of Jupyter's configuration
STYLE = ROOT / "tools" / "lab_style"  # the folder of custom.css, which darkens figures in a dark theme


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--edit", action="store_true", help="open the notebooks themselves, not copies")
    options, of_jupyterlab = parser.parse_known_args(arguments)
    data_dir = trust_folder()
    environment = dict(os.environ)
    if options.edit:
        folder = NOTEBOOKS
        trust([NOTEBOOKS / name for name in names(NOTEBOOKS) if name.endswith(".ipynb")], data_dir)
        paths = [str(EDITING), os.environ.get("JUPYTER_CONFIG_PATH", "")]
        environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(path for path in paths if path)
        print("edit: JupyterLab on notebooks/ itself; stop it with Ctrl-C", flush=True)
    else:
        folder = COPIES
        try:
            lines = refresh(NOTEBOOKS, COPIES)
        except FileExistsError as error:
            sys.exit(f"lab: {error}")
        for line in lines:
            print(f"lab: {line}", flush=True)
        trust(unchanged(COPIES), data_dir)
        print("lab: JupyterLab on my_notebooks/, your copies of notebooks/; stop it with Ctrl-C", flush=True)
    command = [sys.executable, "-m", "jupyterlab", *server_options(folder, data_dir), *of_jupyterlab]
    os.execve(sys.executable, command, environment)


def trust_folder() -> Path:
    """Return where signatures of trusted notebooks are kept: inside the virtual environment if this is one.

    Otherwise it is where `jupyter trust` keeps them for all notebooks of the user.
    """
    is_virtual = sys.prefix != sys.base_prefix
    return Path(sys.prefix, "var", "jupyter", "trust") if is_virtual else Path(jupyter_data_dir())


def server_options(folder: Path, data_dir: Path) -> list[str]:
    """Return options that keep the server on this machine.

    It listens on loopback and asks for a token, which the printed address has. It does not look for news, updates or
    extensions elsewhere. It serves the style sheet in `STYLE`, from there rather than from the user's home. Jupyter
    refuses to run as root unless that is allowed.
    """
    options = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.default_url=/lab/tree/00_one_step.ipynb",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        "--LabApp.custom_css=True",
        f"--ServerApp.tornado_settings=static_custom_path={STYLE}",
        f"--NotebookNotary.data_dir={data_dir}",
    ]
    if hasattr(os, "getuid") and os.getuid() == 0:
        options.append("--allow-root")
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
