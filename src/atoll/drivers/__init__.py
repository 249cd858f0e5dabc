"""Does one kind of thing on one technology per file."""
