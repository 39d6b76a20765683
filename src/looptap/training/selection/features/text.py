"""Features of texts: hashed TF/IDF, and the lengths."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.features.features import SparseFeatures

_HASH_FACTOR = 2654435761  # that of Knuth: it spreads small numbers over 32 bits


def tfidf(texts: Sequence[Any], others: Sequence[Any] | None = None, *, buckets: int = 2**14) -> SparseFeatures:
    """Compute TF/IDF and lengths of ``texts``, and of ``others``, as features.

    ``others`` are their translations or answers.
    A text is a str, whose words are its tokens, or a sequence of tokens. Each token falls into one of ``buckets``
    columns by a hash that is the same in each process; ``others`` have columns of their own. A text takes 8 bytes for
    each different token; a text of each kind has a column with its length, in mean lengths.

    >>> tfidf(["a small cat", "a dog"], [[7, 9], [7, 7]], buckets=100)
    <SparseFeatures: 2 rows of 202 numbers, 0.1 KB>
    """
    if not isinstance(buckets, int) or not 1 <= buckets < 2**30:
        raise ValueError(f"buckets={buckets!r} must be a whole number from 1 to {2**30 - 1:,}.")
    parts = [_one("texts", texts, buckets)]
    if others is not None:
        if len(others) != len(texts):
            raise ValueError(f"{len(others):,} others for {len(texts):,} texts: one for each is needed.")
        parts.append(_one("others", others, buckets))
    row = np.concatenate([one[0] for one in parts])
    columns = np.concatenate([one[1] + place * (buckets + 1) for place, one in enumerate(parts)])
    values = np.concatenate([one[2] for one in parts])
    order = np.argsort(row, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(texts)))])
    return SparseFeatures(starts, columns[order], values[order], len(parts) * (buckets + 1))


def _one(name: str, texts: Sequence[Any], buckets: int) -> tuple[Ints, Ints, Floats]:
    """Return rows, columns and values of one text an instance, its length last."""
    if isinstance(texts, str) or not hasattr(texts, "__len__") or not len(texts):
        raise TypeError(f"{name}={texts!r:.60} must be a sequence of texts.")
    lengths = np.zeros(len(texts), np.int64)
    found: list[Ints] = []
    counts: list[Ints] = []
    for place, text in enumerate(texts):
        unique, often = np.unique(np.fromiter(_hashed(text), np.int64) % buckets, return_counts=True)
        found.append(unique)
        counts.append(often)
        lengths[place] = often.sum()
    row = np.repeat(np.arange(len(texts)), [len(one) for one in found])
    columns = np.concatenate(found)
    frequency = np.concatenate(counts) / np.maximum(lengths, 1)[row]
    texts_with = np.bincount(columns, minlength=buckets)
    values = frequency * (np.log((1 + len(texts)) / (1 + texts_with)) + 1)[columns]
    norms = np.sqrt(np.bincount(row, values**2, len(texts)))
    values /= norms[row]
    every = np.arange(len(texts))
    return (
        np.concatenate([row, every]),
        np.concatenate([columns, np.full(len(texts), buckets)]),
        np.concatenate([values, lengths / max(float(lengths.mean()), 1e-9)]).astype(np.float32),
    )


def _hashed(text: Any) -> Iterator[int]:
    if isinstance(text, str):
        return (zlib.crc32(word.encode()) for word in text.split())
    tokens = text.tolist() if hasattr(text, "tolist") else text
    return (
        (int(token) * _HASH_FACTOR) % 2**32 if isinstance(token, int) else zlib.crc32(str(token).encode())
        for token in tokens
    )
