"""Short news items and their one-sentence summaries."""

import random
import re
from typing import NamedTuple

from embedded.corpus.base import Example
from embedded.corpus.math import NAMES, PLACES, THINGS
from embedded.corpus.wording import Style, capitalise, pick, write


DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
EVENTS = ["race", "quiz", "chess cup", "cook off", "song contest", "swim meet", "ball game", "kite festival"]


class Story(NamedTuple):
    """Template of one kind of news item: its sentences, in any order, and its summary."""

    name: str
    sentences: tuple[str, ...]
    summary: str


def _read(block: str) -> Story:
    name, *lines = block.splitlines()
    *sentences, summary = [line.strip() for line in lines]
    return Story(name, tuple(sentences), summary)


_TEXT = """
contest
  The $e at the $p (took place|was held) on $d.
  $N (came in first|was the best) and $M (came in second|was close behind).
  About $k people (watched|came to see) it.
  $N (won|took) the $e at the $p on $d, ahead of $M.

theft
  (Someone|A thief) (took|stole) $k $i from the $p on $d.
  $N (saw|noticed) it first and (called|told) the police.
  The $i (belong to|are owned by) $M.
  $k $i of $M were (stolen|taken) from the $p on $d, as $N (saw|noticed).

gift
  The $p (has|got) $k new $i since $d.
  $N (paid|gave the money) for them.
  $M (who works there|of the staff) (was glad|said thanks).
  $N (gave|bought) the $p $k $i on $d and $M (was glad|said thanks).

move
  $N has (sold|run) a shop for $i at the $p for $k years.
  On $d the shop (moves|goes) to a new house.
  $M (takes over|will run) the old shop.
  $N (moves|takes) the shop for $i on $d and $M (takes over|will run) the old one at the $p.

rescue
  On $d $M (fell|slipped) into the water near the $p.
  $N (was walking by|came by) with $k $i and (jumped in|pulled hard).
  Both are (safe|well) now.
  $N (saved|rescued) $M from the water near the $p on $d.

closing
  The $p (closes|shuts) on $d for $k weeks.
  $N, who (runs|leads) it, says that the roof must be (fixed|repaired).
  (Visitors|Guests) can see the $i at the house of $M.
  The $p of $N (closes|shuts) on $d for $k weeks and the $i (go|move) to $M.

record
  $N (collects|keeps) $i and now has $k of them.
  The $p (shows|puts on view) all of them from $d on.
  $M had (held|kept) the record before.
  With $k $i $N (beats|breaks) the record of $M and (shows|puts) them at the $p from $d on.

vote
  The (town|village) (voted|decided) on $d about the $p.
  $N (wanted|asked for) a new roof and $M was (against it|not happy).
  The roof won by $k votes.
  $N (won|got) the vote for a new roof of the $p on $d by $k votes against $M.

lost
  $N (lost|left) $k $i at the $p on $d.
  $M (found|came across) them (under a seat|near the gate).
  They were (given back|returned) at once.
  $M (found|came across) the $k $i that $N (lost|left) at the $p on $d.

lesson
  On $d $N (gives|starts) a class about $i at the $p.
  $k (children|students) have (signed up|put down their names).
  $M (helps|joins in) as well.
  $N (gives|starts) a class about $i for $k (children|students) with $M at the $p on $d.
"""
_ASIDES = (
    "It (rained|was cold) (all day|in the morning).",
    "The sun (was out|shone) (all day|for hours).",
    "The mayor (said|wrote) nothing about it.",
    "There will be (more|another one) next year.",
    "Some (people|guests) (stayed|remained) until late.",
    "A band (played|was there) too.",
)
STORIES = tuple(_read(block) for block in _TEXT.strip().split("\n\n"))


def sample(rng: random.Random, style: Style) -> Example:
    """Draw a news item, with the facts and two asides in random order, and a one-sentence summary of all facts."""
    story = STORIES[pick(rng, len(STORIES), style.plan_habit)]
    entities = dict(zip("NM", rng.sample(NAMES, 2)))
    entities |= {"i": rng.choice(THINGS), "p": rng.choice(PLACES), "d": rng.choice(DAYS), "e": rng.choice(EVENTS)}
    entities["k"] = str(rng.randint(2, 99))
    sentences = [*story.sentences, *rng.sample(_ASIDES, 2)]
    rng.shuffle(sentences)
    article = " ".join(capitalise(write(sentence, entities, rng, style)) for sentence in sentences)
    summary = capitalise(write(story.summary, entities, rng, style))
    used = [entities[slot] for slot in sorted(set(re.findall(r"\$(\w)", "".join(story.sentences))))]
    return Example(
        prompt=f"Article: {article}\nSummary:",
        completion=f" {summary}",
        answer=summary,
        key="/".join(["summary", story.name, *used]),
    )
