"""An agent on the plain openai client: it asks for the letter e, in at most two tries.

bough grpo --agent examples/openai_agent.py:play --model tiny --max-steps 20 --output-dir runs/own-agent
"""

from openai import OpenAI

client = OpenAI(api_key="none")


def tasks(split, seed):
    """How each conversation opens. Held-out tasks are those of another split."""
    for number in range(500):
        yield {"opening": f"{split} {seed + number}"}


def play(task, base_url):
    """One conversation; what is returned is what the model learns from."""
    model = client.with_options(base_url=base_url)
    messages = [{"role": "user", "content": f"{task.data['opening']}: write the letter e, often."}]
    for _ in range(2):
        answer = model.chat.completions.create(model="gpt-4o-mini", messages=messages)
        found = answer.choices[0].message.content.count("e")
        if found >= 3:
            break
        messages += [answer.choices[0].message, {"role": "user", "content": "More of them."}]
    return {"success": found >= 3, "reward": min(found, 6) / 6}
