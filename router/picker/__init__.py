"""The pure choice: a question asked of a view.

pick.py         the named pickers; an outcome, or the whole candidate table, of one question
candidates.py   which workers may serve a question, and who may be paired with whom
load_based.py   the rule that compares backlogs
round_robin.py  the rule that takes turns, to compare others with
rotation.py     whose turn it is among equals
decision.py     what a rule hands back for both phases
rows.py         candidate rows and their bytes
"""
