"""The pure choice: a question asked of a view.

pick.py         the named pickers; an outcome, or the whole candidate table, of one question
candidates.py   which workers may serve a question, and who may be paired with whom
load_based.py   the rule that compares backlogs
kv_aware.py     the rule that weighs prefixes against backlogs: which phase is scored how, and where
overlaps.py     what ranks hold of a prompt, as columns
prefix_costs.py costs of all ranks of a phase by prefix and load, and who wins
cost_terms.py   such a cost taken apart again, to be read
conditional.py  whether a decode worker may prefill by itself
softmax.py      one of several costs, drawn by temperature
portable_float.py an exponential with the same bits everywhere
round_robin.py  the rule that takes turns, to compare others with
rotation.py     whose turn it is among equals
decision.py     what a rule hands back for both phases
rows.py         candidate rows and their bytes
rank_table.py   candidates as columns, which rows are made of when somebody asks
"""
