"""What runs inside the sandbox. Only Python's standard library is available there."""
