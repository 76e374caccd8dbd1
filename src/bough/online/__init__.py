"""Online training: play with the newest weights, learn from it, play again."""
