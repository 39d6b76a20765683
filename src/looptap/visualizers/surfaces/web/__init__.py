"""The page of `looptap web`: runs and their charts in an ordinary browser."""
