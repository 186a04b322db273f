"""One module per stage of the pipeline, the configuration, and the worker programs the stages start."""
