"""Types of messages and files, as msgspec reads them."""
