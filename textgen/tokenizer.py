"""Text to token numbers and back: byte pairs with ranks of our own, or those of a nanoGPT or GPT-2 checkpoint.

Ranks live in the .tiktoken format, a line of base64 and number for each token, and are read here and not by tiktoken:
`tiktoken.get_encoding` downloads, and `tiktoken.load` keeps copies by path and would hand out old ones. The encoding
itself is tiktoken's. Vocabularies of other models are read from JSON; a pickle never is.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import collections
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grader.core.errors import UsageError

#: Splits a text into words, within which bytes are paired. It is GPT-2's pattern (Radford et al. 2019), so that its
#: ranks work.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPECIAL = "<|endoftext|>"
LARGEST_FILE_BYTES = 64 << 20


class Tokenizer:
    """A vocabulary. `tokens[k]` are the bytes of token k; `fingerprint` is the sha256 of all of them in order.

    `characters` says that each token is one character and text is looked up character by character, as in nanoGPT's
    character models. Otherwise the tokens are byte-pair ranks and have to hold all 256 bytes; `special` is the
    number of the token that ends a text and is never read from one.
    """

    def __init__(
        self, tokens: Sequence[bytes], *, characters: bool = False, special: int | None = None
    ) -> None:
        self.tokens = list(tokens)
        self.fingerprint = hashlib.sha256(rank_lines(self.tokens)).hexdigest()
        self._numbers: dict[str, int] | None = None
        if characters:
            self._numbers = {token.decode(): k for k, token in enumerate(self.tokens)}
        else:
            import tiktoken

            ranks = {token: k for k, token in enumerate(self.tokens) if k != special}
            self._encoding = tiktoken.Encoding(
                "gpt149",
                pat_str=PATTERN,
                mergeable_ranks=ranks,
                special_tokens={} if special is None else {SPECIAL: special},
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text. Raises UsageError for a character that a vocabulary of characters lacks."""
        if self._numbers is None:
            return self._encoding.encode_ordinary(text)
        unknown = sorted(set(text) - set(self._numbers))
        if unknown:
            raise UsageError(f"the vocabulary has no {', '.join(map(repr, unknown[:5]))}; reword the prompt")
        return [self._numbers[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.tokens[k] for k in tokens).decode(errors="replace")


class TextStream:
    """Tokens to text as they come: bytes of a character that is not complete yet are held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens = tokenizer.tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokens[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


# ---- training


def train(text: str, size: int) -> Tokenizer:
    """Byte pairs merged by frequency until there are `size` tokens (Sennrich et al. 2016), or nothing left to merge.

    Ties go to the pair that is greater as bytes, so that the ranks depend on the text alone. Takes seconds for a
    text of some hundred kilobytes: words are counted first, and pairs are merged in the list of different words.
    """
    import regex  # tiktoken's own dependency

    words = [
        ([bytes([byte]) for byte in word.encode()], count)
        for word, count in sorted(collections.Counter(regex.findall(PATTERN, text)).items())
    ]
    tokens = [bytes([byte]) for byte in range(256)]
    while len(tokens) < size:
        pairs: collections.Counter[tuple[bytes, bytes]] = collections.Counter()
        for pieces, count in words:
            for pair in itertools.pairwise(pieces):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(best[0] + best[1])
        words = [(merged(pieces, best), count) for pieces, count in words]
    return Tokenizer(list(dict.fromkeys(tokens)))


def merged(pieces: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """Return the pieces of a word with every occurrence of the pair made one, from left to right."""
    out: list[bytes] = []
    k = 0
    while k < len(pieces):
        if tuple(pieces[k : k + 2]) == pair:
            out.append(pair[0] + pair[1])
            k += 2
        else:
            out.append(pieces[k])
            k += 1
    return out


# ---- files


def rank_lines(tokens: Sequence[bytes]) -> bytes:
    """Return the contents of a .tiktoken file."""
    return b"".join(base64.b64encode(token) + b" %d\n" % k for k, token in enumerate(tokens))


def load(path: Path) -> Tokenizer:
    """Return a vocabulary from a .tiktoken file, GPT-2's vocab.json, or JSON of a character model.

    The latter is {"a": 0, ...} or nanoGPT's meta as JSON, {"stoi": {"a": 0, ...}}. Raises UsageError, naming the file
    and what is wrong with it.
    """
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UsageError(f"{path}: too large for a vocabulary")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    if path.suffix == ".json":
        return _from_json(path, data)
    if path.suffix == ".tiktoken":
        return _byte_pairs(path, _read_ranks(path, data))
    raise UsageError(f"{path}: a vocabulary is a .tiktoken file or .json (a pickle is never opened)")


def _read_ranks(path: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            if len(fields) != 2 or not fields[1].isdigit():
                raise ValueError
            token = base64.b64decode(fields[0], validate=True)
        except (ValueError, binascii.Error):
            raise UsageError(
                f"{path}:{number}: not 'base64 number', so this is not a .tiktoken file"
            ) from None
        if token in ranks or not token:
            raise UsageError(f"{path}:{number}: this token is empty or stands there twice")
        ranks[token] = int(fields[1])
    return ranks


def _from_json(path: Path, data: bytes) -> Tokenizer:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON") from None
    if isinstance(found, dict) and isinstance(found.get("stoi"), dict):
        found = found["stoi"]
    if not isinstance(found, dict) or not found or not all(type(number) is int for number in found.values()):
        raise UsageError(f"{path}: a vocabulary in JSON maps each token's text to its number")
    if all(len(text) == 1 for text in found):
        return Tokenizer(
            _in_order(path, {_utf8(path, text): number for text, number in found.items()}), characters=True
        )
    return _byte_pairs(path, {_token_bytes(path, text): number for text, number in found.items()})


def _byte_pairs(path: Path, ranks: Mapping[bytes, int]) -> Tokenizer:
    tokens = _in_order(path, ranks)
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking:
        raise UsageError(
            f"{path}: lacks {len(lacking)} of the 256 single bytes, so not every text has tokens"
        )
    return Tokenizer(tokens, special=ranks.get(SPECIAL.encode()))


def _in_order(path: Path, ranks: Mapping[bytes, int]) -> list[bytes]:
    tokens = sorted(ranks, key=lambda token: ranks[token])
    if [ranks[token] for token in tokens] != list(range(len(tokens))):
        raise UsageError(f"{path}: its {len(tokens)} tokens are not numbered from 0 on without gaps")
    return tokens


def _utf8(path: Path, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: {text!r} is half a character") from None


def _printable_bytes() -> dict[str, int]:
    """GPT-2's way to write bytes in JSON: printable ones as themselves, the others as characters from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTE_OF = _printable_bytes()


def _token_bytes(path: Path, text: str) -> bytes:
    if text == SPECIAL:
        return text.encode()
    try:
        return bytes(_BYTE_OF[character] for character in text)
    except KeyError:
        raise UsageError(f"{path}: {text!r} is not written as GPT-2's vocab.json writes bytes") from None
