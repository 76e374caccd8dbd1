"""What runs as it is: recipes of several stages (`bough run NAME`), and settings of one verb (`--config`)."""
