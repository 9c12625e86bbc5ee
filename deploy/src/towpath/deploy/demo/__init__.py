"""
The demo: a shop's checkouts on their way into a warehouse, a search index and a cache.

``stage`` holds the plan and the state of a run, ``platform`` and ``shop`` its steps,
``compare`` the proof, ``table`` and ``screen`` the display; ``run`` runs the steps in
order. A run stops every process that it has started, even after Ctrl-C.
"""
