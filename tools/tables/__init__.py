"""The tables of README and documentation, by the name of their place on a page."""

from tools.tables.quality import published
from tools.tables.speed import speed


TABLES = {**published(), **speed()}
