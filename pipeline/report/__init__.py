"""Reports of the jobs: one HTML file each, without external resources."""
