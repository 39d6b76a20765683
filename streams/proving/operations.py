"""The operations of checked code by the names that rewritten code has for them."""

from __future__ import annotations

from looptap.streams.harmless.checked_code import CHECKS
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.proving.calls import call
from looptap.streams.proving.methods import method
from looptap.streams.proving.reading import item, read
from looptap.streams.proving.vouching import (
    binary,
    deep,
    each,
    iterate,
    keyed,
    keys,
    mapping,
    own,
    shown,
    slice_of,
    truth,
    unary,
    unpack,
    within,
)
from looptap.streams.proving.writing import delete, delete_item, enter, in_place, module, of_super, write, write_item

CHECKS.update({
    "__read": read, "__item": item, "__call": call, "__method": method, "__iterate": iterate, "__each": each,
    "__binary": binary, "__unary": unary, "__deep": deep, "__shown": shown, "__within": within, "__truth": truth,
    "__own": own, "__key": keyed, "__keys": keys, "__unpack": unpack, "__mapping": mapping, "__slice": slice_of,
    "__write": write, "__write_item": write_item, "__delete": delete, "__delete_item": delete_item,
    "__in_place": in_place, "__enter": enter, "__super": of_super, "__module": module, "__Refusal": Refusal,
})
