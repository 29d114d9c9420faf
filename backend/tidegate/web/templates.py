"""Rendering of pages: Jinja2 with autoescape everywhere and no undefined names.

Names of sessions, tools and commands are text that an agent chose. Autoescape keeps them from becoming markup;
:func:`visible` keeps the rest of their tricks (terminal escapes, right-to-left overrides, invisible characters) from
changing what a reader sees. JSON is never written into a page: pages fetch it from the API.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tidegate.web.contexts import CONTEXTS, BaseContext, names

_HIDDEN: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # direction marks and overrides, separators, zero width
    "\ud800-\udfff"  # lone surrogates, which UTF-8 cannot carry
    "\U000e0000-\U000e007f"  # tags: invisible text
    "]"
)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str) -> str:
    """Text whose control, direction and invisible characters are written as ``\\x1b`` or ``\\u202e``."""
    return _HIDDEN.sub(_escape, text)


def short(text: object, length: int = 80) -> str:
    """At most ``length`` characters, the last an ellipsis when some were cut."""
    cut = str(text)
    return cut if len(cut) <= length else cut[: length - 1] + "…"


def _finalize(value: Any) -> Any:
    # Markup is the templates' own (macros, blocks) and has been through here already.
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Templates:
    """The pages' templates.

    Args:
        directory: holds the files named in :data:`~tidegate.web.contexts.CONTEXTS`.
    """

    def __init__(self, directory: Path) -> None:
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(directory),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.filters["short"] = short

    def render(self, context: BaseContext) -> str:
        """The page that belongs to the type of ``context``."""
        name = next(name for name, cls in CONTEXTS.items() if type(context) is cls)
        return self.environment.get_template(name).render(names(context))
