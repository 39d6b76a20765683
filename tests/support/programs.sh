#!/usr/bin/env bash
# Installs the programs and libraries that some tests need, where that may be done without asking anybody; says what is
# missing. The packages are Debian's.
set -u
missing=""
PATH="$PATH:/usr/sbin:/usr/local/sbin"
for pair in chromium:chromium Xvfb:xvfb tmux:tmux script:bsdutils ssh:openssh-client sshd:openssh-server ip:iproute2 \
    gdb:gdb git:git cc:gcc; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
# What windows of Qt load beside what comes with PySide6.
if [ "$(uname)" = Linux ]; then
    known=$(ldconfig -p 2>/dev/null)
    for pair in libEGL.so.1:libegl1 libGL.so.1:libgl1 libdbus-1.so.3:libdbus-1-3 libfontconfig.so.1:libfontconfig1 \
        libglib-2.0.so.0:libglib2.0-0 libxkbcommon-x11.so.0:libxkbcommon-x11-0 libxcb-cursor.so.0:libxcb-cursor0 \
        libxcb-icccm.so.4:libxcb-icccm4 libxcb-keysyms.so.1:libxcb-keysyms1 libxcb-shape.so.0:libxcb-shape0; do
        case "$known" in *"${pair%%:*}"*) ;; *) missing="$missing ${pair##*:}" ;; esac
    done
fi
[ -z "$missing" ] && exit 0
root=""
if [ "$(id -u)" != 0 ]; then
    root="sudo -n"
fi
if command -v apt-get >/dev/null && { [ -z "$root" ] || $root true 2>/dev/null; }; then
    echo "looptap: installing$missing, for the tests of notebooks, windows, the terminal and ssh"
    $root apt-get update -qq >/dev/null && $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
    [ $? = 0 ] && exit 0
fi
echo "looptap: there is no$missing here and it cannot be installed: the tests that need it are skipped."
