"""What all tests rely on."""

import signal

# A shell that starts a job in the background has it ignore Ctrl-C, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
