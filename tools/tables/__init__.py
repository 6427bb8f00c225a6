"""The tables of README and documentation, by the name of their place on a page."""

from tools.tables.quality import pair, published
from tools.tables.speed import serving, speed


TABLES = {**pair(), **published(), **speed(), **serving()}
