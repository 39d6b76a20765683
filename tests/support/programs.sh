#!/usr/bin/env bash
# Installs the programs that some tests need, where that may be done without asking anybody; says what is missing.
set -u
missing=""
for pair in chromium:chromium Xvfb:xvfb tmux:tmux; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
[ -z "$missing" ] && exit 0
root=""
if [ "$(id -u)" != 0 ]; then
    root="sudo -n"
fi
if command -v apt-get >/dev/null && { [ -z "$root" ] || $root true 2>/dev/null; }; then
    echo "looptap: installing$missing, for the tests of notebooks, windows and the terminal"
    $root apt-get update -qq >/dev/null && $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
    [ $? = 0 ] && exit 0
fi
echo "looptap: there is no$missing here and it cannot be installed: the tests that need it are skipped."
