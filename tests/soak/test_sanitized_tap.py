"""The compiled tap under sanitizers, with inputs that no caller would give."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig

import pytest
from places import PACKAGE, ROOT

SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))
SANITIZERS = ("asan", "ubsan")


@pytest.mark.soak
@pytest.mark.timeout(20 * SECONDS + 600)
def test_no_input_makes_the_tap_touch_memory_that_is_not_its_own(tmp_path, capsys):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here, so the tap was NOT fuzzed")
    module = tmp_path / "_tap.so"
    source = PACKAGE / "agent" / "loop" / "tap" / "module.c"
    watched = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    flags = ["-std=c11", "-g", "-O1", *watched, "-shared", "-fPIC"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, *flags, include, str(source), "-o", str(module)], check=True)
    libraries = [
        subprocess.run([compiler, f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True).stdout
        for name in SANITIZERS
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(library.strip() for library in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter itself leaves memory behind; test_tap_rows.py counts
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(ROOT / "tests" / "support"),
        "LOOPTAP_PURE": "0",
    }
    seed = random.getrandbits(32)
    with capsys.disabled():
        print(f"\nThe tap is fuzzed for {SECONDS:.0f} s, with seed {seed}.", end="", flush=True)
    command = [sys.executable, str(ROOT / "tests" / "soak" / "fuzzing_tap.py"), str(module), str(SECONDS), str(seed)]
    done = subprocess.run([*command, "tensors"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert "Sanitizer" not in done.stderr
    assert f"calls, seed {seed}" in done.stdout
