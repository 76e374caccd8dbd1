"""Where runs are reported besides their own folder."""
