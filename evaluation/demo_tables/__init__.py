"""Tables that anybody may have: public reviews, and dialogues made up here."""
