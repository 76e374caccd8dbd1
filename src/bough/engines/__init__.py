"""Generation: a conversation in, a reply out, with its exact tokens and log-probabilities where they can be had."""
