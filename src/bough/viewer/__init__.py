"""`bough view`: a local web page over a run folder or a data file. Nothing in it writes to what it shows."""
