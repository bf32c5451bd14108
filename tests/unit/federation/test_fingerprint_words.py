import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidInput
from federation.words import WORDS, fingerprint_words, parse_words, words_match


def test_the_list_has_256_words_no_two_of_which_begin_alike() -> None:
    assert len(WORDS) == 256
    assert list(WORDS) == sorted(WORDS)
    assert len({word[:4] for word in WORDS}) == 256
    assert all(word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 8 for word in WORDS)


def test_the_words_of_a_key_are_known_and_stay_the_same() -> None:
    # SHA-256 of 32 zero bytes begins 66687aadf862bd776c8fc18b.
    expected = " ".join(WORDS[byte] for byte in bytes.fromhex("66687aadf862bd776c8fc18b"))
    assert fingerprint_words(bytes(32)) == expected


@given(st.binary(min_size=32, max_size=32))
def test_the_words_of_a_key_match_that_key(key: bytes) -> None:
    assert words_match(fingerprint_words(key), key)


@pytest.mark.parametrize(
    "said",
    [
        str.upper,
        str.title,
        lambda words: words.replace(" ", "-"),
        lambda words: words.replace(" ", ",  \n"),
        lambda words: f"  {words.replace(' ', '   ')}.\r\n",
    ],
)
def test_case_blanks_commas_and_hyphens_do_not_matter(said) -> None:  # type: ignore[no-untyped-def]
    key = b"k" * 32
    assert words_match(said(fingerprint_words(key)), key)


def test_each_single_word_matters_and_so_does_their_order() -> None:
    key = b"k" * 32
    words = fingerprint_words(key).split()
    for place, word in enumerate(words):
        wrong = [*words[:place], "zipper" if word != "zipper" else "zebra", *words[place + 1 :]]
        assert not words_match(" ".join(wrong), key)
    assert not words_match(" ".join(words[::-1]), key)


def test_a_misheard_word_is_answered_with_the_nearest_one() -> None:
    words = fingerprint_words(b"k" * 32).split()
    with pytest.raises(InvalidInput) as refused:
        parse_words(" ".join(["elefant", *words[1:]]))
    assert "word 1, 'elefant'" in refused.value.message
    assert refused.value.hint == "did you mean 'elephant'?"


@pytest.mark.parametrize("text", ["", "acid", "acid " * 11, "acid " * 13])
def test_another_number_of_words_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="needed are 12"):
        parse_words(text)
