"""Commands about trust: sources, trust, retract."""
