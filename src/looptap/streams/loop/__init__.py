"""What is known of the loop of a job: who watches it, and where it stands."""
