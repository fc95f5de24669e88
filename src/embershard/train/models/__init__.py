"""Models that come with the project, one a file; `embershard.train.model` says what a model is."""
