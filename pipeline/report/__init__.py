"""What the jobs found, as pages for people: one HTML file each, that loads nothing."""
