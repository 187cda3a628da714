"""The page's own files, the policies under which a browser runs them, and the page as one file.

The scripts are classic ones that share one scope, in the order of index.html: no build step, and
the exported file holds the same scripts one after the other. Under both policies a script or style
that is not the page's own does not run, nothing is loaded from or sent to another place, and
strings cannot become markup by `innerHTML` (Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

INDEX = "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NOWHERE = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# Browsers heed `frame-ancestors` in a header alone, so that the exported file's policy lacks it.
POLICY = (
    f"{_NOWHERE}; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'"
)
"""Of the page that the server delivers."""
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w./-]+)">')
_SCRIPT = re.compile(r'<script src="static/([\w./-]+)" defer></script>')
_ICON = re.compile(r'href="static/(icon\.svg)"')


@cache
def assets() -> dict[str, bytes]:
    """Path below static/ -> content, of everything that the server may deliver."""
    contents: dict[str, bytes] = {}

    def add(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif entry.name.rpartition(".")[2] in TYPES:
                contents[prefix + entry.name] = entry.read_bytes()

    add(files("pettingllms.viewer") / "static", "")
    return contents


def single_file(blocks: dict[str, str]) -> str:
    """The page with all scripts, styles and data in it.

    Args:
        blocks: id -> data in base64, each in an element of its own that no browser runs.
    """
    text = assets()[INDEX].decode()
    styles = [_inline(name) for name in _STYLE.findall(text)]
    scripts = [_inline(name) for name in _SCRIPT.findall(text)]
    style = "\n".join(styles)
    icon = base64.b64encode(assets()["icon.svg"]).decode()
    # By digest: under 'unsafe-inline' a script that slipped into the page would run as well.
    allowed = " ".join(map(_digest, scripts))
    policy = f"{_NOWHERE}; script-src {allowed}; style-src {_digest(style)}; img-src data:"
    data = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{block}</script>'
        for name, block in blocks.items()
    )
    licenses = "\n\n".join(f"{name}\n\n{text}" for name, text in sorted(_licenses().items()))
    # A script inside of the page cannot be deferred, so that it stands behind the data it reads.
    run = "\n".join(f"<script>{script}</script>" for script in scripts)
    head, _, body = text.partition("</head>")
    head = _ICON.sub(f'href="data:image/svg+xml;base64,{icon}"', head)
    head = _SCRIPT.sub("", _STYLE.sub("", head))
    # The policy stands before everything that it is about.
    head = head.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    end, _, rest = body.partition("</body>")
    return (
        f"{head.rstrip()}\n<style>{style}</style>\n</head>{end}{data}\n"
        f'<script type="text/plain" id="licenses">{licenses}</script>\n{run}\n</body>{rest}'
    )


def _licenses() -> dict[str, str]:
    """Licenses of the libraries, whose terms require that each copy has them."""
    folder = files("pettingllms.viewer") / "static" / "vendor"
    texts = [entry for entry in folder.iterdir() if entry.name.endswith(".LICENSE.txt")]
    return {entry.name.removesuffix(".LICENSE.txt"): entry.read_text("utf-8") for entry in texts}


def _inline(name: str) -> str:
    text = assets()[name].decode()
    # Nothing of ours contains these; an update of a library might, and would break the file.
    for mark in ("</script", "</style", "<!--"):
        if mark in text.lower():
            raise ValueError(f"static/{name} contains {mark!r} and cannot stand inside a page")
    return text


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
