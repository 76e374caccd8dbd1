"""Answers made by hand, most of them wrong, each with the benchmark's verdict on it.

A multi-turn answer has a list of replies per user turn, and each reply its calls, written
as in Python; `...` stands for the gold calls of that turn, one per reply.
"""

from __future__ import annotations

from typing import Any

from bough.chat.tool_calls import read_call
from bough.types import ToolCall
from bough.worlds.functions import benchmark
from bough.worlds.functions.conversation import Conversation

STATE, RESPONSE = "multi_turn:instance_state_mismatch", "multi_turn:execution_response_mismatch"
EMPTY, VALID = "multi_turn:empty_turn_model_response", "valid"
CHECKER = "simple_function_checker"
REPORT = ["cd(folder='document')", "mkdir(dir_name='temp')", "mv(source='final_report.pdf', destination='temp')"]
DOORS = "lockDoors(unlock=True, door=['driver', 'passenger', 'rear_left', 'rear_right'])"

MULTI_TURN: list[tuple[str, str, list[Any]]] = [
    # All calls of a turn in one reply; a call again; a harmless call more.
    (VALID, "multi_turn_base_0", [[REPORT], ..., ..., ...]),
    (VALID, "multi_turn_base_0", [[REPORT, ["pwd()"], ["ls()"]], ..., ..., ...]),
    (VALID, "multi_turn_base_0", [[REPORT, ["mkdir(dir_name='temp')"]], ..., ..., ...]),
    # The folder is never made, has another name, or one more is made.
    (STATE, "multi_turn_base_0", [[REPORT[:1], REPORT[2:]], ..., ..., ...]),
    (STATE, "multi_turn_base_0", [[[*REPORT[:2], "mkdir(dir_name='more')"], REPORT[2:]], ..., ..., ...]),
    (STATE, "multi_turn_base_0", [[[REPORT[0], "mkdir(dir_name='tmp')"], REPORT[2:]], ..., ..., ...]),
    # Nothing is called, at all or in one turn. What was seen in an earlier turn still counts, but not without a call.
    (EMPTY, "multi_turn_base_0", [[], [], [], []]),
    (EMPTY, "multi_turn_base_0", [..., ..., [], ...]),
    (EMPTY, "multi_turn_base_0", [..., [["cd(folder='temp')"], ["grep(file_name='final_report.pdf', "
     "pattern='budget analysis')", "sort(file_name='final_report.pdf')"]], [], ...]),
    (VALID, "multi_turn_base_0", [..., [["cd(folder='temp')"], ["grep(file_name='final_report.pdf', "
     "pattern='budget analysis')", "sort(file_name='final_report.pdf')"]], [["pwd()"]], ...]),
    # The state is right but a result is missing: another pattern, another file, no look at all.
    (RESPONSE, "multi_turn_base_0", [..., [["cd(folder='temp')", "grep(file_name='final_report.pdf', "
     "pattern='budget')"], ["ls()"]], [["cat(file_name='final_report.pdf')"]], ...]),
    (RESPONSE, "multi_turn_base_0", [..., [["cd(folder='temp')"]], ..., ...]),
    # Unknown functions and arguments are errors that the agent reads; afterwards it may do it right.
    (VALID, "multi_turn_base_0", [[["move(source='a')"], ["mkdir(folder='temp')"], REPORT], ..., ..., ...]),
    (STATE, "multi_turn_base_0", [[[*REPORT[:2], "mv(source='final_report.pdf', destination='temp', force=True)"]],
     ..., ..., ...]),
    (STATE, "multi_turn_base_0", [[["remove(file_name='document')"], ["_load_scenario(scenario=1)"]], ..., ..., ...]),
    # A function that is not offered yet, and calls where none are expected.
    (VALID, "multi_turn_miss_func_0", [..., ..., [["sort(file_name='final_report.pdf')"]], [["pwd()"]], ...]),
    (EMPTY, "multi_turn_miss_func_0", [..., ..., [["sort(file_name='final_report.pdf')"]], [], ...]),
    (VALID, "multi_turn_miss_func_0", [..., ..., ..., ..., ...]),
    (VALID, "multi_turn_miss_param_0", [..., ..., ..., [["pwd()"]], ...]),
    (STATE, "multi_turn_miss_param_0", [..., ..., ..., [["rm(file_name='final_report.pdf')"]], ...]),
    # Numbers of another type, another order, doors one by one.
    (VALID, "multi_turn_base_75", [[["fillFuelTank(fuelAmount=30)"]], ..., ..., ...]),
    (STATE, "multi_turn_base_75", [[["fillFuelTank(fuelAmount=29.0)"]], ..., ..., ...]),
    (STATE, "multi_turn_base_75", [[["fillFuelTank(fuelAmount='30.0')"]], ..., ..., ...]),
    (STATE, "multi_turn_base_75", [..., [["check_tire_pressure()"], ["post_tweet(content='32 PSI')"]], ..., ...]),
    (VALID, "multi_turn_base_50", [[["setHeadlights(mode='on')"], *[[f"lockDoors(unlock=True, door=['{door}'])"]
     for door in ("driver", "passenger", "rear_left", "rear_right")]]]),
    (VALID, "multi_turn_base_50", [[["setHeadlights(mode='on')"], [DOORS]]]),
    (STATE, "multi_turn_base_50", [[[DOORS], ["setHeadlights(mode='auto')"]]]),
    (STATE, "multi_turn_base_60", [..., ..., [["create_ticket(title='Tire', description='', priority=5)"]], ..., ...]),
    (VALID, "multi_turn_base_60", [..., ..., [["create_ticket(title='Tire Pressure Issue', priority=5)"]], ..., ...]),
    (RESPONSE, "multi_turn_base_60", [..., [["displayCarStatus(option='doors')"]], ..., ..., ...]),
    # Orders, budgets, messages and sums.
    (STATE, "multi_turn_base_110", [..., [["get_stock_info(symbol='AAPL')"], ["place_order(order_type='Sell', "
     "symbol='AAPL', price=227.16, amount=100)"]], ..., ..., ..., ...]),
    (VALID, "multi_turn_base_110", [[["get_watchlist()"], ["get_stock_info(symbol='AAPL')"]], [["place_order("
     "order_type='Buy', symbol='AAPL', price=227.16, amount=100)"]], ..., ..., ..., ...]),
    (STATE, "multi_turn_base_150", [..., [["compute_exchange_rate(base_currency='GBP', target_currency='USD', "
     "value=15400)"], ["set_budget_limit(access_token='abc123token', budget_limit=22000.5)"]]]),
    (STATE, "multi_turn_base_160", [..., [["book_flight(access_token='wrong', card_id='card_3478', travel_date="
     "'2026-02-28', travel_from='JFK', travel_to='LAX', travel_class='business')"]], ...]),
    (VALID, "multi_turn_base_15", [..., ..., ..., ..., [["mean(numbers=[60, 3, 16])"]]]),
    (RESPONSE, "multi_turn_base_15", [..., ..., ..., ..., [["mean(numbers=[3, 16])"]]]),
    (VALID, "multi_turn_base_15", [..., ..., ..., ..., [["sum_values(numbers=[3, 16, 60])"], ["divide(a=79, b=3)"]]]),
    (STATE, "multi_turn_base_14", [..., ..., ..., [["message_login(user_id='USR001')"], ["send_message(receiver_id="
     "'USR005', message='Latest Quarter Performance has been well.')"]]]),
    (STATE, "multi_turn_base_14", [..., ..., ..., [["message_login(user_id='USR001')"], ["add_contact(user_name="
     "'John Levy')"], ["send_message(receiver_id='USR005', message='It went well.')"]]]),
    (STATE, "multi_turn_long_context_5", [..., ...,
     [["post_tweet(content='Managed to archive important data files!')"]], ...]),
    (VALID, "multi_turn_long_context_5", [..., ..., ..., ...]),
]  # fmt: skip

# What is said about the calls of a single-turn answer; calls are names with their arguments.
SINGLE_TURN: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    (VALID, "simple_python_0", [("calculate_triangle_area", {"base": 10, "height": 5})]),
    (VALID, "simple_python_0", [("calculate_triangle_area", {"base": 10, "height": 5, "unit": "Units"})]),
    ("value_error:string", "simple_python_0", [("calculate_triangle_area", {"base": 10, "height": 5, "unit": "cm"})]),
    ("value_error:others", "simple_python_0", [("calculate_triangle_area", {"base": 5, "height": 10})]),
    ("type_error:simple", "simple_python_0", [("calculate_triangle_area", {"base": "10", "height": 5})]),
    ("type_error:simple", "simple_python_0", [("calculate_triangle_area", {"base": 10.0, "height": 5})]),
    ("type_error:simple", "simple_python_0", [("calculate_triangle_area", {"base": None, "height": 5})]),
    (f"{CHECKER}:missing_required", "simple_python_0", [("calculate_triangle_area", {"base": 10})]),
    (f"{CHECKER}:wrong_func_name", "simple_python_0", [("triangle_area", {"base": 10, "height": 5})]),
    (f"{CHECKER}:unexpected_param", "simple_python_0",
     [("calculate_triangle_area", {"base": 10, "height": 5, "x": 1})]),
    (f"{CHECKER}:wrong_count", "simple_python_0", []),
    (f"{CHECKER}:wrong_count", "simple_python_0", 2 * [("calculate_triangle_area", {"base": 10, "height": 5})]),
    (VALID, "multiple_3", [("EuclideanDistance_calculate", {"pointA": [3, 4], "pointB": [1, 2]})]),
    (f"{CHECKER}:wrong_func_name", "multiple_3",
     [("EuclideanDistance.calculate", {"pointA": [3, 4], "pointB": [1, 2]})]),
    ("value_error:list/tuple", "multiple_3", [("EuclideanDistance_calculate", {"pointA": [4, 3], "pointB": [1, 2]})]),
    ("type_error:nested", "multiple_3", [("EuclideanDistance_calculate", {"pointA": ["3", 4], "pointB": [1, 2]})]),
    (f"{CHECKER}:wrong_func_name", "multiple_3", [("angleToXAxis_calculate", {"pointA": [3, 4], "pointB": [1, 2]})]),
    (VALID, "parallel_1", [("calculate_em_force", {"b_field": 5, "area": 2, "d_time": time}) for time in (10, 4)]),
    ("parallel_function_checker_no_order:wrong_count", "parallel_1",
     [("calculate_em_force", {"b_field": 5, "area": 2, "d_time": 4})]),
    ("parallel_function_checker_no_order:cannot_find_match", "parallel_1",
     2 * [("calculate_em_force", {"b_field": 5, "area": 2, "d_time": 4})]),
    (VALID, "parallel_multiple_2", [("circle_calculate_circumference", {"diameter": 10}),
                                    ("circle_calculate_area", {"radius": 5})]),
    ("parallel_function_checker_no_order:cannot_find_match", "parallel_multiple_2",
     [("circle_calculate_circumference", {"diameter": 10}), ("circle_calculate_area", {"radius": 10})]),
    (VALID, "live_simple_2-2-0", [("uber_ride", {"loc": "2020 addison street berkeley ca usa", "type": "comfort",
                                                 "time": 600})]),
    (f"{CHECKER}:missing_required", "live_simple_2-2-0", [("uber_ride", {"loc": "2020 Addison Street"})]),
    (VALID, "simple_java_1", [("SQLCompletionAnalyzer_makeProposalsFromObject", {"object": "Customers", "useShortName":
     "true", "params": 'new HashMap<>() {{ put("limit", 50); put("schemaFilter", "public"); }}'})]),
    ("type_error:java", "simple_java_1", [("SQLCompletionAnalyzer_makeProposalsFromObject", {"object": "Customers",
     "useShortName": True, "params": {"limit": 50, "schemaFilter": "public"}})]),
    ("value_error:dict_value", "simple_java_1", [("SQLCompletionAnalyzer_makeProposalsFromObject", {"object":
     "Customers", "useShortName": "true", "params":
     'new HashMap<>() {{ put("limit", 5); put("schemaFilter", "public"); }}'})]),
    (VALID, "simple_javascript_0", [("validateUserInput", {"inputField": "userInputField", "isComplete": "true"})]),
    ("type_error:js", "simple_javascript_0", [("validateUserInput", {"inputField": "userInputField",
                                                                    "isComplete": True})]),
    ("value_error:dict_key", "simple_javascript_20", [("buttonAddClickHandler", {"element": "myButton", "callback":
     "handleButtonClick", "options": "{passive: true}"})]),
]  # fmt: skip


def turns_of(task_id: str, answer: list[Any]) -> list[list[list[ToolCall]]]:
    """The calls of an answer, by user turn and reply."""
    gold = Conversation(benchmark.entry(task_id)).gold
    assert len(answer) == len(gold), task_id
    return [
        [[call] for call in calls] if replies is ... else [[_read(text) for text in reply] for reply in replies]
        for replies, calls in zip(answer, gold, strict=True)
    ]


def _read(text: str) -> ToolCall:
    call = read_call(text)
    assert call is not None, text
    return call
