"""Parts of a window: its charts, their view, pointer, frames and drawing."""
