"""GSM8K's worked solutions as programs: tasks that the interpreter's expert can play.

    python -m benchmarks.gsm8k_programs gsm8k-train.jsonl.xz programs.jsonl

A solution marks its calculations, `48/2 = <<48/2=24>>24`. Each becomes a line of a program under the sentence
that it is from. Both use earlier results by name, so that nothing has to be computed without the interpreter.
Only problems of the interpreter's split `train` are written, and only those whose program computes the answer.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from bough.data.lines import lines
from bough.data.reader import parse
from bough.worlds.interpreter.environment import Interpreter

MARK = re.compile(r"<<([^=<>]+)=([^<>]+)>>")
EXPRESSION = re.compile(r"[\d\s+*/().-]+")
# A calculation's result in its sentence. The program must compute it, so its comment does not say it.
RESULT = re.compile(r"(\s*=\s*)?\$?<<([^=<>]+)=[^<>]+>>\$?(?:\d[\d,]*)?(?:\.\d+)?")
# A dot after it may end the sentence.
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w|\.\S)")


def program(solution: str, answer: float) -> str | None:
    """A program that prints the answer of a worked solution; None where its marks do not lead there."""
    written, names, values = [], dict[float, str](), list[float]()
    for sentence in solution.partition("####")[0].strip().splitlines():
        marks = MARK.findall(sentence)
        if marks:
            shown = RESULT.sub(lambda found: "" if found[1] else found[2], sentence).strip()
            written.append(f"# {_with_names(shown, names)}")
        for expression, _ in marks:
            value = _value(expression)
            if value is None:
                return None
            name = f"step_{len(values) + 1}"
            written.append(f"{name} = {_with_names(expression.strip(), names)}")
            values.append(value)
            names[value] = name
    if not values or abs(values[-1] - answer) > 1e-6:
        return None
    shown = f"round({names[values[-1]]})" if answer == int(answer) else f"round({names[values[-1]]}, 2)"
    return "\n".join([*written, f"print({shown})"])


def _value(expression: str) -> float | None:
    if not EXPRESSION.fullmatch(expression) or "**" in expression or "//" in expression:
        return None
    try:
        return float(eval(expression.strip(), {"__builtins__": {}}))
    except (SyntaxError, ArithmeticError, TypeError):
        return None


def _with_names(expression: str, names: dict[float, str]) -> str:
    """The expression with earlier results by their names; a number that no step gave stays as it is."""
    return NUMBER.sub(lambda found: names.get(float(found[0]), found[0]), expression)


def tasks(file: Path) -> Iterator[dict[str, object]]:
    """The tasks of a file of GSM8K that can be written as programs."""
    worked = {}
    for _, content in lines(file):
        row = parse(content)
        worked[str(row["question"])] = str(row["answer"])
    options = Interpreter.Options(file=file)
    for task in Interpreter.tasks(options, split="train"):
        question, answer = str(task.data["problem"]), str(task.data["answer"])
        try:
            code = program(worked[question], float(answer.replace(",", "")))
        except ValueError:
            continue
        if code is not None:
            data = {"kind": "arithmetic", "problem": question, "answer": answer.replace(",", ""), "code": code}
            yield {"id": task.id, "environment": Interpreter.name, "data": data}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="GSM8K's training set: question, answer")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    found = [json.dumps(task) for task in tasks(options.file)]
    options.output.write_text("\n".join([*found, ""]))
    print(f"{len(found)} tasks in {options.output}")


if __name__ == "__main__":
    main()
