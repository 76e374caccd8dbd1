"""Generation in this process: the keys and values of an episode stay in memory between its turns."""
