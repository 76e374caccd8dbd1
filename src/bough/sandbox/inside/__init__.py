"""What runs on the far side of the wall. Only Python's own library is at hand there."""
