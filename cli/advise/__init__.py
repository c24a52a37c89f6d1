"""Commands of the advisor for thread blocks: advise and its page."""
