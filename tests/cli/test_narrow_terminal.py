"""Tables on a narrow terminal keep what is looked for."""

from __future__ import annotations

import os

from terminals import answered

import looptap


def test_compare_leaves_out_settings_before_results(processes, place, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path))
    for number in range(2):
        settings = {f"a_long_setting_{letter}": number for letter in "abcdef"}
        with looptap.Agent(f"run-{number}", config=settings) as agent:
            agent.stream("loss", "loss", keep=True)
            agent.emit("batch", loss=0.5 + number)
    code, shown = answered(["compare"], [], dict(os.environ), columns=80)
    assert code == 0
    titles = shown.splitlines()[0]
    assert "best(loss)" in titles
    assert "final(loss)" in titles
    assert "a_long_setting_a" in titles
    assert "columns more" in shown
