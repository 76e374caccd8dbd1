"""Losses and advantages: pure functions of tensors and numbers, one noun per file."""
