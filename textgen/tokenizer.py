"""Converts text to token numbers and back, with a vocabulary of the kit, of nanoGPT or of GPT-2.

The numbers of byte-pair tokens are ranks: they follow the order in which pairs were merged. Ranks are stored in the
.tiktoken format, where each line has a token in base64 and its number. The library tiktoken encodes texts. This module
reads the files itself, because `tiktoken.get_encoding` downloads them and `tiktoken.load` may return an old copy.
Vocabularies of other models are read from JSON, never from a pickle.
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

from grader.core.errors import UsageError, explained

#: GPT-2's pattern (Radford et al. 2019), which its ranks require. It splits a text into words. Pairs of bytes are
#: merged only within a word.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPECIAL = "<|endoftext|>"
LARGEST_FILE_BYTES = 64 << 20


class Tokenizer:
    """A vocabulary. `tokens[k]` has the bytes of token k; `fingerprint` is the sha256 of all tokens in order.

    With `characters`, each token is one character, as in nanoGPT's character models. Otherwise token numbers are
    byte-pair ranks, and the tokens must include all 256 single bytes. `special` is the number of the token that ends a
    text, if it exists; `encode` never returns it.
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
        """Return the token numbers of a text.

        Raises UsageError if the vocabulary consists of characters and lacks a character of the text.
        """
        if self._numbers is None:
            return self._encoding.encode_ordinary(text)
        unknown = sorted(set(text) - set(self._numbers))
        if unknown:
            shown = ", ".join(map(repr, unknown[:5]))
            raise UsageError(f"the vocabulary has no {shown}: leave this out of the prompt")
        return [self._numbers[character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.tokens[k] for k in tokens).decode(errors="replace")


class TextStream:
    """Converts tokens to text one by one. Bytes of an incomplete character wait until a later token completes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens = tokenizer.tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokens[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


# ---- training


def train(text: str, size: int) -> Tokenizer:
    """Return a vocabulary of at most `size` tokens, made by merging byte pairs (Sennrich et al. 2016).

    Among equally frequent pairs, the greatest (compared as bytes) is merged, so that ranks depend only on the text.
    Each distinct word is stored once, with its count, so that training on a few hundred kilobytes takes only seconds.
    """
    import regex  # installed with tiktoken, which depends on it

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
    """Return the pieces of a word after every occurrence of the pair is merged into one piece, from left to right."""
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
    """Return the contents of a .tiktoken file with these tokens, in order."""
    return b"".join(base64.b64encode(token) + b" %d\n" % k for k, token in enumerate(tokens))


def load(path: Path) -> Tokenizer:
    """Return a vocabulary from a .tiktoken file, GPT-2's vocab.json, or JSON of a character model.

    JSON of a character model is {"a": 0, ...} or nanoGPT's meta, {"stoi": {"a": 0, ...}}. Raises UsageError that names
    the file and the fault.
    """
    with explained(f"cannot read the vocabulary {path}"):
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UsageError(f"{path}: too large for a vocabulary")
        data = path.read_bytes()
    if path.suffix == ".json":
        return _from_json(path, data)
    if path.suffix == ".tiktoken":
        return _byte_pairs(path, _read_ranks(path, data))
    raise UsageError(f"{path}: a vocabulary is a .tiktoken or .json file (pickles are never opened)")


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
                f"{path}:{number}: a line of a .tiktoken file is 'base64 number', and this line is not"
            ) from None
        if token in ranks or not token:
            raise UsageError(f"{path}:{number}: this line's token is empty or occurs twice in the file")
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
            f"{path}: it lacks {len(lacking)} of the 256 one-byte tokens, without which some texts cannot be encoded"
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
        raise UsageError(f"{path}: {text!r} is half a character (an unpaired surrogate)") from None


def _printable_bytes() -> dict[str, int]:
    """Return the byte for which each character in GPT-2's vocab.json stands.

    A printable byte is written as its own character, the other bytes as the characters 256, 257 and so on.
    """
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
        raise UsageError(f"{path}: {text!r} has a character that a vocab.json of GPT-2 lacks") from None
