"""An OpenAI-compatible endpoint that records what its clients' models see and say, token for token."""
