"""Function calling: the Berkeley Function-Calling Leaderboard (BFCL v4) with its own back ends and checks."""
