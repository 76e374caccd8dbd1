"""`bough card` and `bough push`: what an adapter is, told from the folders that made it, and handed over."""
