"""An agent on the plain openai client, unchanged but for its base URL: a long "yes" in at most two tries.

bough grpo --agent examples/openai_agent.py:play --model tiny --max-steps 30 --output-dir runs/own-agent
"""

from openai import OpenAI


def tasks(split, seed):
    """Different words to open with; the held-out ones are not trained on."""
    for number in range(500):
        yield {"opening": f"{split} {seed + number}"}


def play(task, base_url):
    """One conversation. What is returned is what the model learns from."""
    client = OpenAI(base_url=base_url, api_key="none")
    messages = [{"role": "user", "content": f"{task.data['opening']}: write the letter e, often."}]
    best = 0
    for _ in range(2):
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
        reply = answer.choices[0].message.content
        best = max(best, reply.count("e"))
        if best >= 3:
            break
        messages += [answer.choices[0].message, {"role": "user", "content": "More of them."}]
    return {"success": best >= 3, "reward": min(best, 6) / 6}
