"""How the inputs of a recipe are made and addressed, its reference, its floors, its peers."""
