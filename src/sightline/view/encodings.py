"""Tokens of a page from what tokenizers return: ids, Hugging Face's BatchEncoding and encodings of `tokenizers`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SightlineError, check

TOKEN_OPTIONS = ("tokens", "source", "target", "generated")
REPLACING_TOKENS = frozenset(("[UNK]", "[MASK]", "<unk>", "<mask>"))
"""Special tokens that stand for words, and are therefore not hidden."""


@dataclass(frozen=True)
class EncodedTokens:
    """The tokens of one example."""

    tokens: Any
    """Strings, None where there is padding; or what the user gave."""
    token_type_ids: list[int] | None = None
    special: frozenset[str] = frozenset()


def read_encodings(
    options: dict[str, Any], indices: Sequence[int], *, is_list: bool, tokenizer: Any
) -> tuple[dict[str, Any], frozenset[str]]:
    """Replace encodings and ids in the token options by lists of strings; also return the special tokens.

    With `is_list`, an option has one entry for each of the examples `indices`.
    """
    options, special = dict(options), _special_tokens(tokenizer)
    for name in TOKEN_OPTIONS:
        value = options.get(name)
        if value is None:
            continue
        is_batch = _is_encoding(value) or (tokenizer is not None and _is_table(value))
        if is_list and not is_batch:
            is_valid = not isinstance(value, str) and hasattr(value, "__len__")
            check(is_valid, f"{name} must have one entry for each of the {len(indices)} examples, got {value!r:.60}")
            encoded = [_encoded(name, entry, 0, tokenizer) for entry in value]
        else:
            encoded = [_encoded(name, value, index, tokenizer) for index in indices]
        options[name] = [entry.tokens for entry in encoded] if is_list else encoded[0].tokens
        special = special.union(*(entry.special for entry in encoded))
        segments = [entry.token_type_ids for entry in encoded]
        if name in ("tokens", "source") and options.get("token_type_ids") is None and any(segments):
            options["token_type_ids"] = segments if is_list else segments[0]
    return options, special - REPLACING_TOKENS


def _encoded(name: str, value: Any, index: int, tokenizer: Any) -> EncodedTokens:
    if not _is_encoding(value):
        if tokenizer is not None and _is_table(value):
            value = _row(name, value, index)
        return EncodedTokens(_to_tokens(value, tokenizer))
    if not isinstance(value, Mapping) and hasattr(value, "ids"):  # an Encoding of the library `tokenizers`
        return _of_fast(value)
    fast = getattr(value, "encodings", None)
    ids = value["input_ids"]
    is_single = not _is_table(ids)
    if fast:
        check(0 <= index < len(fast), f"{name} must have batch index {index}, got {len(fast)} examples")
        return _of_fast(fast[index])
    check(tokenizer is not None, f"{name} must be tokens or an encoding of a fast tokenizer, got ids; pass tokenizer=")
    rows = {
        key: value[key] if is_single else _row(name, value[key], index)
        for key in value
        if key in ("input_ids", "attention_mask", "token_type_ids")
    }
    tokens = _to_tokens(rows["input_ids"], tokenizer)
    tokens = _without_padding(tokens, rows.get("attention_mask"))
    types = rows.get("token_type_ids")
    types = None if types is None else [int(i) for i in types]
    return EncodedTokens(tokens, types if types and set(types) == {0, 1} else None)


def _of_fast(encoding: Any) -> EncodedTokens:
    """An Encoding of the library `tokenizers`."""
    types, is_special = list(encoding.type_ids), encoding.special_tokens_mask
    if set(types) != {0, 1}:  # RoBERTa has no token types, XLNet a third one
        types, sequence = [], 0
        for i in encoding.sequence_ids:
            sequence = sequence if i is None else i
            types.append(sequence)
    special = frozenset(token for token, flag in zip(encoding.tokens, is_special, strict=True) if flag)
    tokens = _without_padding(list(encoding.tokens), encoding.attention_mask)
    return EncodedTokens(tokens, types if len(set(types)) > 1 else None, special)


def _is_encoding(value: Any) -> bool:
    is_mapping = isinstance(value, Mapping) and "input_ids" in value
    return is_mapping or (hasattr(value, "ids") and hasattr(value, "special_tokens_mask"))


def _is_table(value: Any) -> bool:
    """Whether these are ids of a batch: (B, T)"""
    if hasattr(value, "shape"):
        return len(value.shape) == 2
    return (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple) and _is_id(value[0][:1])
    )


def _is_id(values: Any) -> bool:
    return len(values) > 0 and type(values[0]) is int


def _row(name: str, table: Any, index: int) -> Any:
    check(0 <= index < len(table), f"{name} must have batch index {index}, got {len(table)} examples")
    return table[index]


def _to_tokens(values: Any, tokenizer: Any) -> Any:
    """Ids as tokens. Anything else is returned as it is."""
    if tokenizer is None or isinstance(values, str) or not hasattr(values, "__len__"):
        return values
    items = values.tolist() if hasattr(values, "tolist") else list(values)
    if not any(type(item) is int for item in items):
        return values
    name = next((name for name in ("convert_ids_to_tokens", "id_to_token") if hasattr(tokenizer, name)), None)
    if name is None:
        kind = type(tokenizer).__name__
        raise SightlineError(
            f"tokenizer must be one of Hugging Face, with convert_ids_to_tokens or id_to_token, got {kind}"
        )
    convert = getattr(tokenizer, name)
    tokens = [convert(item) if type(item) is int else item for item in items]
    tokens = [token.decode("utf-8", "replace") if isinstance(token, bytes) else token for token in tokens]
    return [
        f"<{item}>" if token is None and item is not None else token for token, item in zip(tokens, items, strict=True)
    ]


def _without_padding(tokens: list[Any], attention_mask: Any) -> list[Any]:
    """None in place of the tokens behind the last one that is attended to."""
    if attention_mask is None:
        return tokens
    length = max((i for i, flag in enumerate(attention_mask, 1) if flag), default=len(tokens))
    return tokens[:length] + [None] * (len(tokens) - length)


def _special_tokens(tokenizer: Any) -> frozenset[str]:
    tokens: Collection[Any] = getattr(tokenizer, "all_special_tokens", ())
    return frozenset(str(token) for token in tokens)
