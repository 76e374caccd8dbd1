"""Training: the policy, its rows, and the loop over them."""
