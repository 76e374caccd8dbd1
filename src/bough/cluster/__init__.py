"""Episodes, learners and populations on a Ray cluster. Only functions in here import Ray."""
