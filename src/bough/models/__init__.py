"""From a model's name to a local folder that transformers can load; torch stays unloaded until one is built."""
