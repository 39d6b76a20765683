"""What a page needs to draw charts: the script, and the numbers it is given."""
