"""Directory trees on disk: manifests, copies and overlay layers."""
