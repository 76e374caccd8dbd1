"""The worlds that come with Bough. Nothing outside a world's folder knows its texts."""
