"""Charts that are kept up to date on a page, at its own pace."""
