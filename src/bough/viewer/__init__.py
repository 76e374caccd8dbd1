"""`bough view`: shows a run folder or a data file as a local web page. It never writes to that folder."""
