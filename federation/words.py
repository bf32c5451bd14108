"""Fingerprints of keys as words that two people compare over the phone; pure.

Twelve words stand for the first 96 bits of SHA-256 of a public key: to make another key with the same words takes 2^96
attempts. The list is our own: 256 short English words, in order, no two of which begin with the same four letters, so
that half a word on a bad line is enough. What is read is forgiving about case, blanks, commas and hyphens, and about
nothing else.
"""

import difflib
import hashlib
import hmac
import re
from typing import Final

from federation.errors import InvalidInput

WORD_COUNT: Final = 12
_LIST: Final = """
    acid album alley amber anchor angle apple april arrow artist autumn badge bakery bamboo banjo barrel basket beacon
    bench berry bishop blanket blossom bottle branch bridge bronze bubble bucket butter cabin cactus camera candle
    canyon carpet castle cedar cellar chalk cherry circle clock clover coffee comet copper coral cotton cradle crayon
    cricket crystal curtain daisy dancer deck desert diamond dinner doctor dolphin donkey dragon drawer drum duck dust
    eagle echo eggs elbow elephant ember engine evening fabric falcon farmer feather fence fiddle finger flag flute
    forest fossil fountain fox friend galaxy garden garlic gate ginger giraffe glacier glove goat grape gravel guitar
    hammer harbor hazel hedge helmet hockey honey horizon hotel hunter iceberg igloo indigo ink iron island ivory
    jacket jaguar jelly jigsaw jungle jury kettle kitchen koala ladder lagoon lantern lemon leopard library lion
    lizard lobster locket lumber magnet mango maple marble meadow melon meteor mirror monkey morning motor muffin
    museum napkin nectar needle night north nutmeg oasis ocean octopus olive onion opera orange orbit otter oven owl
    oyster paddle palace panda parrot pearl pebble pencil pepper piano pigeon pillow planet pocket pony potato powder
    pumpkin puzzle queen quilt quiz rabbit radio raft rainbow raven ribbon river robin rocket rope ruby saddle salmon
    satin school seven shadow shield silver singer sister sketch spider spoon stone sugar summer sweater table tango
    teapot temple thunder ticket tiger tomato tower tractor trumpet tulip tunnel turtle umbrella uncle unicorn valley
    velvet village violin volcano voyage waffle wagon walnut wedding whale willow winter wizard wolf yacht yellow
    zebra zigzag zipper
"""
WORDS: Final[tuple[str, ...]] = tuple(_LIST.split())
_NUMBER: Final = {word: number for number, word in enumerate(WORDS)}
_BETWEEN: Final = re.compile(r"[^A-Za-z]+")


def fingerprint_words(public_key: bytes) -> str:
    """Return the twelve words of `public_key`, joined by blanks."""
    return " ".join(WORDS[byte] for byte in hashlib.sha256(public_key).digest()[:WORD_COUNT])


def parse_words(text: str) -> bytes:
    """Return the 12 bytes that the words in `text` stand for.

    Raises:
        InvalidInput: Not twelve words, or one that is not on the list; the nearest one is suggested.
    """
    words = [word.lower() for word in _BETWEEN.split(text) if word]
    for place, word in enumerate(words, 1):
        if word not in _NUMBER:
            near = difflib.get_close_matches(word, WORDS, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else "ask for the words again"
            raise InvalidInput("CFD-E03", f"word {place}, '{word[:20]}', is on no list of fingerprint words", hint=hint)
    if len(words) != WORD_COUNT:
        raise InvalidInput("CFD-E03", f"{len(words)} fingerprint words were given, needed are {WORD_COUNT}")
    return bytes(_NUMBER[word] for word in words)


def words_match(text: str, public_key: bytes) -> bool:
    """Return whether the words in `text` are those of `public_key`.

    Raises:
        InvalidInput: As `parse_words`.
    """
    return hmac.compare_digest(parse_words(text), hashlib.sha256(public_key).digest()[:WORD_COUNT])
