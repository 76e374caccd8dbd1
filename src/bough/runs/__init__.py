"""`bough run RECIPE`: the stages of a recipe one after the other, stopped and resumed anywhere."""
