"""Parts of a window: its charts, how they are looked at, pointer, frames, drawing."""
