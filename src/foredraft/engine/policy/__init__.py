"""Who drafts how much in each step: costs that are measured, acceptance that is learned, and the choice from both."""
