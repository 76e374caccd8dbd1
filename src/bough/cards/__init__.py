"""`bough card` and `bough push`: the model card of trained weights, written from their run's files, and the upload."""
