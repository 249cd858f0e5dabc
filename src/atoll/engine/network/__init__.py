"""A capsule's network as its owner sees it: rules, egress log, ports and URLs."""
