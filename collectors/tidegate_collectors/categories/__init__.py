"""What a tool call is for, from its command line: tests, install, git, search and so on (``records.Category``).

The rules are in ``categories.toml``, the one place to change them; ``$TIDEGATE_CATEGORIES`` names another file to use
in its stead. Command lines are hostile text: whatever they hold, :func:`classify` answers and never raises, and a
summary has only words that the rules know.
"""

from .classify import Classified, classify, configured_table
from .table import Table, TableError, load

__all__ = ["Classified", "Table", "TableError", "classify", "configured_table", "load"]
