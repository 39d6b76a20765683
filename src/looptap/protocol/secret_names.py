"""Names and texts that suggest a secret, and what is shown in place of its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

HIDDEN = "(hidden)"
"""What is shown in place of a secret."""

_LOGIN = ("-u", "--user")  # options of curl and the like, before user:password
_MAX_CHARACTERS = 20_000  # of a text, beyond which it is cut off
_MAX_ORDINARY_NUMBER = 99_999  # the largest that is no key: a size, a count, the id of a token
_SPECIAL = re.compile(r"</?\w{1,20}>|\[\w{1,20}\]")  # such as <pad> and [CLS]
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_KIND = (
    "(?:api|access|account|auth|bearer|deploy|encryption|github|gitlab|hf|hub|license|master|private|refresh|sas|secret"
    "|shared|signing|ssh|user|wandb)"
)
_PASSWORD = re.compile(r"passw|passphrase|passcode|secret(?!ar)|credential|^(?:pwd|creds?)$")
_KEY = re.compile(
    rf"^(?:key|pass|pw|auth[nz]?|authorization|authentication|oauth|bearer|jwts?|pats?|cookies?|session|sessionid|sess"
    rf"|signature|sig|sas|dsn|otp|totp|pem|webhook|netrc|connstr|{_KIND}keys?|\w*token|{_KIND}tokens)$"
)
_PLURAL = re.compile(rf"(?:^|_){_KIND}_(?:keys|tokens)(?:_|$)|conn(?:ection)?_str(?:ing)?(?:_|$)")

_ADDRESS = re.compile(  # user:password before a host
    r"(?<=://)(?:[^/@\s]+|[^/:@\s]+:[^\s@]*)@|(?<![\w/:])[\w.+-]+:[^\s@/:]+@(?=[\w-])"
)
_SHAPE = re.compile(  # tokens that are known by their form
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|npm_|pypi-|sk-|[sr]k_live_|AIza|AKIA|ASIA)[\w-]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?|(?i:(?<=\bbearer )|(?<=\bbasic ))[\w.~+/=-]{6,}"
    r"|(?<=hooks\.slack\.com/services/)\S+|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)
_NAME = re.compile(r"[A-Za-z_][\w.-]*(?=[\"']?\]?\s*[:=])")
_QUOTED = re.compile(r"([\"']?\]?\s*[:=]\s*)([rbfuRBFU]{0,2}(?:\"[^\"\n]*\"?|'[^'\n]*'?))")
_PLAIN = re.compile(r"([\"']?\s*[:=]\s*)((?:(?i:bearer|basic) )?[^\s;&,\"'#)}\]]+)")
_SETTING = re.compile(r"(=|:[ \t]+)([^\s\"'(\[{][^\n]*)")  # which is all of a line
_BEGINNING = re.compile(r"(?:^|\n)[+ -]?[ \t]*(?:export[ \t]+)?$")


def secret(name: str, value: Any = "") -> bool:
    """Return whether the value of a setting or an option is to be hidden.

    By a part of its name. A small number is hidden only if the name means a password.

    >>> [secret(name) for name in ("db.password", "hf_token", "--apiKey", "max_tokens", "tokenizer", "author")]
    [True, True, True, False, False, False]
    >>> secret("num_key_value_heads", 8), secret("pin.password", 1234)
    (False, True)
    """
    if value is None or isinstance(value, bool):
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if any(map(_PASSWORD.search, words)):
        return True
    return bool(any(map(_KEY.search, words)) or _PLURAL.search("_".join(words))) and not _ordinary(value)


def _ordinary(value: Any) -> bool:
    """Return whether it is a small number, as of a size or an id, or a special token."""
    if isinstance(value, str) and _SPECIAL.fullmatch(value):
        return True
    try:
        return abs(float(value)) <= _MAX_ORDINARY_NUMBER
    except (TypeError, ValueError, OverflowError):
        return False


def without_secrets(text: str) -> str:
    """Return a text without the values that its words, addresses and pairs hide.

    >>> without_secrets("s3://me:pw@host/data?access_token=abc&part=2 Server=db;Password=x")
    's3://(hidden)@host/data?access_token=(hidden)&part=2 Server=db;Password=(hidden)'
    """
    found = _pairs_hidden(text[:_MAX_CHARACTERS], lambda before: (_QUOTED, _PLAIN))
    return _SHAPE.sub(HIDDEN, _ADDRESS.sub(f"{HIDDEN}@", found))


def diff_without_secrets(diff: str) -> str:
    """Return a diff of code and settings without what they assign to secret names.

    Code stays: only texts in quotes are hidden, and what is assigned in a line of settings.

    >>> print(diff_without_secrets('+api_key = "abc"\\n+token = next(tokens)\\n+HF_TOKEN=abc'))
    +api_key = (hidden)
    +token = next(tokens)
    +HF_TOKEN=(hidden)
    """
    found = _pairs_hidden(diff, lambda before: (_QUOTED, _SETTING) if _BEGINNING.search(before) else (_QUOTED,))
    return _SHAPE.sub(HIDDEN, _ADDRESS.sub(f"{HIDDEN}@", found))


def _pairs_hidden(text: str, forms: Callable[[str], Iterable[re.Pattern[str]]]) -> str:
    """Hide the values of secret names.

    ``forms`` returns the forms of a value that may follow the text before a name.
    """
    parts, end = [], 0
    for name in _NAME.finditer(text):
        if name.start() < end or not secret(name[0]):
            continue
        for form in forms(text[max(0, name.start() - 80) : name.start()]):
            if (value := form.match(text, name.end())) and secret(name[0], value[2].strip("\"'")):
                parts += [text[end : value.start(2)], HIDDEN]
                end = value.end(2)
                break
    return "".join([*parts, text[end:]])


def words_without_secrets(words: list[str]) -> list[str]:
    """Return the words of a command line, with the values of secret options hidden.

    >>> words_without_secrets(["train.py", "--api-key", "x", "--password=y", "--lr", "0.1", "--num-key-heads", "8"])
    ['train.py', '--api-key', '(hidden)', '--password=(hidden)', '--lr', '0.1', '--num-key-heads', '8']
    """
    found: list[str] = []
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if before and not word.startswith("--") and (secret(before, word) or (before in _LOGIN and ":" in word)):
            found.append(HIDDEN)
        elif equals and " " not in name and "://" not in name and secret(name, value):
            found.append(f"{name}={HIDDEN}")
        else:
            found.append(without_secrets(word))
        before = word if word.startswith("-") and not equals else ""
    return found
