"""A folder for `feature_dirs` of `nvdlfw_inspect`, which executes every file in it."""
