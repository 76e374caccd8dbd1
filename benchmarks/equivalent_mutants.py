"""Mutants that compute the same as the original: by the line as they change it, why no test can notice."""

from __future__ import annotations

from benchmarks.mutants import Mutant

NUMBER = "a number of another type, the same value"
ONE_ROW = "there is one row, so the first is the last"
UNREAD = "every entry is written before it is read"
PROMOTED = "the other side is in float32, and so is the result"
ONE_CALL = "every call is a part of its own, so the first is the last"
MASK = "a mask has the same mean"
NO_WEIGHTS = "distillation reads neither advantages nor weights"
ON_CPU = "a CPU has nothing to move or to wait for"
ONE_AXIS = "there is one axis, so the first is the last"
EQUIVALENT = {
    **dict.fromkeys(
        (
            "logprobs_N = torch.cat([found[(-1)] for found in logprobs])",
            "lengths = torch.tensor([len(found[(-1)]) for found in logprobs])",
            "weights_N = torch.tensor([part.weights[(-1)] for part in parts]).repeat_interleave(lengths)",
            "found = [of_part[(-1)] for of_part in logprobs]",
            "start = torch.cat([of_part[(-1)] for of_part in reference]) if reference is not None else None",
            "torch.cat([torch.full_like(f, part.advantages[(-1)]) for part, f in zip(parts, found, strict=True)]),",
            "torch.cat([torch.full_like(f, part.weights[(-1)]) for part, f in zip(parts, found, strict=True)]),",
            "sampler_logprobs_N=sampler_logprobs([part.calls[(-1)] for part in parts], old, self.temperature),",
            "found = torch.cat([of_part[(-1)] for of_part in logprobs])",
            "part.old_logprobs[(-1)].to(now.device) if part.old_logprobs else now.detach()",
            "teacher = torch.cat([of_part[(-1)] for of_part in reference])",
        ),
        ONE_CALL,
    ),
    **dict.fromkeys(
        (
            "advantages=((1.0),) * len(calls),",
            "advantages=((-1.0),) * len(calls),",
            "weights=((2.0),) * len(calls),",
            "weights=((0.0),) * len(calls),",
        ),
        NO_WEIGHTS,
    ),
    '"clip_high_fraction": (too_high_N),': MASK,
    '"clip_low_fraction": (too_low_N),': MASK,
    '"dual_clip_fraction": (too_far_N),': MASK,
    '"importance_capped_fraction": (mismatch_N > math.log(IMPORTANCE_CAP)),': MASK,
    '"accuracy": Mean.over((side_U * (gain_U - kl) > 0), every_U),': MASK,
    "part.old_logprobs[0].to(now.device) if part.old_logprobs else (now)": "the loss detaches it again",
    "gains_U = ((other_U) - other_reference_U.float()).detach()": PROMOTED,
    "gains_U = (other_U.float() - (other_reference_U)).detach()": PROMOTED,
    "return torch.stack([gains_U.sum(), gains_U.new_tensor((len(gains_U)))])": NUMBER,
    "return ((example.num_chosen > 0) + (example.num_rejected > 0))": NUMBER,
    "before_first = next((i for i in range(last, -(2), -1) if clusters[i] != clusters[0]), None)": (
        "-1 is the last one again"
    ),
    "before_first = next((i for i in range(last, -(0), -1) if clusters[i] != clusters[0]), None)": (
        "the first does not differ from itself"
    ),
    "decay = (A) * dt.float()": PROMOTED,
    "decay = A.float() * (dt)": PROMOTED,
    "return (zip(*(torch.split_with_sizes(each_L, sizes) for each_L in ordered), strict=True))": "it is read once",
    "for i in range((0), len(lengths) + 1):": "the first segment is not shorter than itself",
    "return None if (states is None and self.parents_S is None) else states[self.parents_S]": (
        "both are None at the roots and nowhere else"
    ),
    "return (torch.from_numpy(array))": ON_CPU,
    'return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=(False))': ON_CPU,
    "return [1 / divisor for divisor in divisors], (sum((length > 0 for length in lengths)))": NUMBER,
    "return [1.0] * len(lengths), (sum(lengths))": NUMBER,
    "self.branches.append(((size + depth + self.depth), branch))": (
        "the branches of one branching all get the same amount more, so their order stays"
    ),
    "shape = tensors[(-1)].shape": "all have the same shape, or it is an error",
    "cut = np.zeros(num_calls + (2), np.int64)": "one more entry that is not read",
    "for j in range((2), num_calls + 1):": "the first call alone costs 0 and is cut at 0, as the zeros say",
    (
        "return table.sum(-1, dtype=torch.int32), "
        "table.argsort(dim=-1, descending=True, stable=(False)).to(torch.int32)"
    ): "the order of the listed blocks is free",
    "past_FKC = hidden_states[(-1)].T[ancestors_FK.clamp(min=0)] * (ancestors_FK >= 0)[..., None]": ONE_ROW,
    "past_FKC = hidden_states[0].T[ancestors_FK.clamp(min=(-1))] * (ancestors_FK >= 0)[..., None]": (
        "what is read for a missing ancestor is multiplied by 0"
    ),
    "past_FKC = hidden_states[0].T[(ancestors_FK)] * (ancestors_FK >= 0)[..., None]": (
        "what is read for a missing ancestor is multiplied by 0"
    ),
    (
        'above = np.where(has_parent_L[starts], np.searchsorted(starts, parent_L[starts], "right") - 1, -(2))'
    ): "any negative number says that there is no parent",
    "inputs = [each[(-1)] for each in (query, key, value, g, beta)]": ONE_ROW,
    "return branching.scan([each[(-1)] for each in (hidden_states, dt, B, C)], step)[None]": ONE_ROW,
    "output = branching.linear_scan([each[(-1)] for each in (q, k, v, decay)], packed)[None]": ONE_ROW,
    "outputs.append(output[(-1)])": ONE_ROW,
    "denominator=(sum((len(call.completion_ids) for call in calls))),": NUMBER,
    "return (differs.argmax())": NUMBER,
    "enable_gqa=query.shape[1] != key.shape[(0)],": "where both have as many heads, nothing is repeated either way",
    "starts = (~follows_L).nonzero()[(-1)]": ONE_AXIS,
    "chosen = (level == depth).nonzero()[(-1)]": ONE_AXIS,
    "nodes_F = (ancestors_LK != in_row_LK).any(axis=1).nonzero()[(-1)]": ONE_AXIS,
    "ancestors.append(np.where(ancestors[-1] < (1), -1, parent_L[ancestors[-1]]))": (
        "the first node of a row is a root, so its parent is -1"
    ),
    "differences, alpha = task_differences(known), round(1.0 - level, (13))": "0.05 either way",
    "differences, alpha = task_differences(known), round(1.0 - level, (11))": "0.05 either way",
    "if (tasks_needed(1.0, 1.0, alpha) < count):": "never a whole number",
    "high = 1.0 if successes >= trials else min((2.0), centre + half)": "below 1 by itself unless all succeed",
    "adjusted, highest = [(2.0)] * len(p_values), 0.0": UNREAD,
    "adjusted, highest = [(0.0)] * len(p_values), 0.0": UNREAD,
    "adjusted, highest = [1.0] * len(p_values), (-1.0)": "p-values are not negative",
    "NEAR = (-0.9999999)": "the ends are found more exactly",
    "return top + (np.log(np.mean(np.exp(logs - top)))) if np.isfinite(top) else top": NUMBER,
    "square = max(square, difference * difference, (-0.999999999999))": (
        "matters only for differences below a millionth"
    ),
    "root = by_chance * math.sqrt(square) + by_truth * math.sqrt(max((-1.0), square - difference * difference))": (
        "the line before has made it 0 or more"
    ),
    "return value if (abs(value) >= TINY) else TINY": "1 and a number added are 0, or far from it: never TINY itself",
    "found.setdefault(outcome.unit if families else outcome.task, []).append((known))": NUMBER,
    "saddle = bisect(slope, (1.0 * float(distinct[0])), 0.0, 1e-8)": (
        "the smallest is the -1 that is added: differences between rates are not below it"
    ),
    "if tasks_needed(1.0, (0.0), alpha) <= count:": "a mean square is at least the squared mean, 1",
    "return by_task(outcomes, lambda one: None if one.mistakes is None else one.mistakes.get(reason, (-1)) > 0)": (
        "-1 is not above 0 either"
    ),
}


def reason(mutant: Mutant) -> str | None:
    """Why the mutant computes the same as the original, if it is known to."""
    return EQUIVALENT.get(mutant.changed_line)
