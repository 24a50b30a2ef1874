"""What an exact private step costs beside an ordinary one. Random weights and tokens: no data."""
