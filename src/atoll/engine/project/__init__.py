"""What is known of a project: settings, detected tools, trust, levels, package registries."""
