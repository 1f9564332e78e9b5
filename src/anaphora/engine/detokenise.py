"""Tokens back to text, one token at a time, never half a character.

    push(id) push(id) push(id) ... flush()      pieces concatenate to the decoded whole

Two ways, chosen by the tokenizer's decoder: byte-level vocabularies go through their bytes, which is exact
for every sequence of ids; all others (sentencepiece style) decode a short window of tokens twice and give the
difference, since there a token's text depends on its neighbours.
"""

import codecs
import re
from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "\ufffd"
_NUM_CONTEXT_TOKENS = 6  # prompt tokens in front of the window: enough for a leading space to be kept
_MAX_HELD_TOKENS = 6  # a character has at most 4 bytes; what is still broken after 6 tokens stays broken
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"  # sentencepiece's sign for a space


class TokenTexts:
    """What single token ids stand for. Build one per tokenizer; what it has looked up it remembers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.is_byte_level = type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"
        self.special_ids = _special_ids(tokenizer)
        self._byte_of = _byte_alphabet() if self.is_byte_level else {}
        self._bytes: dict[int, bytes] = {}

    def text_of(self, token_id: int) -> str:
        """Return the token's text by itself; replacement characters stand for parts of characters."""
        return self.bytes_of(token_id).decode("utf-8", errors="replace")

    def bytes_of(self, token_id: int) -> bytes:
        """Return the token's bytes: its name for a special token, nothing for an id without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._look_up(token_id)
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens together, without special tokens."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if token_id in self.special_ids:
            return str(token).encode()
        if self.is_byte_level:
            # The decoder's own rule: a token with any character outside the alphabet is plain text.
            values = [self._byte_of.get(character) for character in token]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else str(token).encode()
        if (match := _BYTE_TOKEN.fullmatch(token)) is not None:
            return bytes([int(match[1], 16)])
        return str(token).replace(_SPACE_MARK, " ").encode()


class Detokeniser:
    """One sequence's text as it grows.

    For byte-level vocabularies the text is that of the generated tokens alone. For others it is what the
    generated tokens add to the prompt's text, so that a leading space is kept.
    """

    def __init__(self, tokenizer: Any, prompt_tokens: Sequence[int] = (), *, texts: TokenTexts | None = None) -> None:
        self._texts = texts if texts is not None else TokenTexts(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._window = self._context([int(token_id) for token_id in prompt_tokens[-_NUM_CONTEXT_TOKENS:]])
        self._num_given = len(self._window)  # window tokens whose text was given or belongs to the prompt

    def push(self, token_id: int) -> str:
        """Take the next token and return the text it completes, which may be empty.

        Cost: O(1) amortised; of the window's few tokens where the vocabulary isn't byte-level.
        """
        if token_id in self._texts.special_ids:
            return ""
        if not self._texts.is_byte_level:
            return self._push_window(token_id)
        return self._decoder.decode(self._texts.bytes_of(token_id))

    def flush(self) -> str:
        """Return what was held back; an unfinished character becomes a replacement character."""
        if self._texts.is_byte_level:
            return self._decoder.decode(b"", final=True)
        return self._give(self._new_text())

    def token_text(self, token_id: int) -> str:
        """Return a token's text by itself (see TokenTexts)."""
        return self._texts.text_of(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes (see TokenTexts)."""
        return self._texts.bytes_of(token_id)

    def _push_window(self, token_id: int) -> str:
        self._window.append(int(token_id))
        text = self._new_text()
        num_held = len(self._window) - self._num_given
        unfinished = not text or text.endswith(_REPLACEMENT)
        if unfinished and num_held < _MAX_HELD_TOKENS:
            return ""
        return self._give(text)

    def _new_text(self) -> str:
        given = self._texts.decode(self._window[: self._num_given])
        return self._texts.decode(self._window)[len(given) :]

    def _give(self, text: str) -> str:
        """Note that all of the window was given. Its newest part stays as the next tokens' left neighbour."""
        self._window = self._context(self._window[-_NUM_CONTEXT_TOKENS:])
        self._num_given = len(self._window)
        return text

    def _context(self, tokens: list[int]) -> list[int]:
        """Drop tokens in front that are the rest of a character: a run of bytes is decoded as one."""
        if self._texts.is_byte_level:
            return []
        for index, token_id in enumerate(tokens):
            if not _is_continuation(self._texts.bytes_of(token_id)):
                return tokens[index:]
        return tokens[-1:]


def _is_continuation(data: bytes) -> bool:
    return len(data) == 1 and 0x80 <= data[0] < 0xC0


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = tokenizer.added_tokens_decoder.items()
    return frozenset({token_id for token_id, token in added if token.special} | set(tokenizer.all_special_ids))


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable bytes of Latin-1 stand for themselves; the other 68 take the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    alphabet = {chr(value): value for value in printable}
    alphabet.update({chr(0x100 + index): value for index, value in enumerate(others)})
    return alphabet
