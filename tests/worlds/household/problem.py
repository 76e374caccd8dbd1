"""A small official file, written by hand: two cups, one of them in the sink basin, a shelf and a drawer."""

GRAMMAR = '''grammar :: """
    {
        "task": [ { "rhs": "Your task is to: put a cup in shelf." } ],
        "PutObject.feedback": [ { "rhs": "You move the {o.name} to the {r.name}." } ]
    }
""";
action PutObject {
    template :: "move {o} to {r}";
    feedback :: "#PutObject.feedback#";
}
action help {
    template :: "help";
    feedback :: "
Help yourself.
";
}
'''
INIT = """
    (atLocation agent1 loc_bar_0)
    (receptacleType Shelf_bar_1 ShelfType) (receptacleAtLocation Shelf_bar_1 loc_bar_1)
    (receptacleType Drawer_bar_1 DrawerType) (receptacleAtLocation Drawer_bar_1 loc_bar_2) (openable Drawer_bar_1)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType) (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_1)
    (objectType Cup_bar__minus_1 CupType) (objectAtLocation Cup_bar__minus_1 loc_bar_2) (pickupable Cup_bar__minus_1)
    (objectType Cup_bar__plus_1 CupType) (objectAtLocation Cup_bar__plus_1 loc_bar_1)
    (isReceptacleObject Cup_bar__plus_1)
    (objectType Sink_bar_1 SinkType) (objectAtLocation Sink_bar_1 loc_bar_1)
    (inReceptacleObject Sink_bar_1 Cup_bar__plus_1)
    (inReceptacle Cup_bar__minus_1 Drawer_bar_1) ; a comment (inReceptacle Cup_bar__minus_1 Shelf_bar_1)
    (inReceptacle Cup_bar__plus_1 Sink_bar_1_bar_SinkBasin)
    (canContain ShelfType CupType) (canContain ShelfType MugType) (canContain SafeType CupType)
    (= (distance loc_bar_0 loc_bar_1) 3)
"""
GOAL = "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o CupType) (receptacleType ?r ShelfType)))))"  # noqa: E501


def problem(init: str = INIT, goal: str = GOAL) -> str:
    return f"(define (problem p) (:domain alfred) (:objects Cup_bar_unused - object) (:init {init}) (:goal {goal}))"


CONTENT = {"pddl_problem": problem(), "grammar": GRAMMAR, "pddl_domain": "", "solvable": True, "walkthrough": []}
