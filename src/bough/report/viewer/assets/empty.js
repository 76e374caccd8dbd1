// What a page says when the folder has nothing for it: what would be here, and the command that makes it.
import { h } from "./dom.js";

const HOW = {
  runs: ["This folder has no runs, evaluations or data files yet.", "A shipped recipe makes a whole run:", "bough run demo-household"],
  training: ["This folder has no training run yet.", "sft, dpo and grpo write their metrics here while they train:", "bough sft --train-file examples/household.jsonl --output-dir runs/sft"],
  trajectories: ["This folder has no trajectories yet.", "Let a model play some episodes:", "bough collect --environment household --model smollm2 --tasks 20 --output runs/collect"],
  pairs: ["This folder has no preference pairs yet.", "Find some in episodes that were collected:", "bough pairs runs/collect --output runs/pairs.jsonl"],
  groups: ["This folder has no groups of attempts yet.", "Collect with --attempts 4 or more, then group the attempts at each task:", "bough groups runs/collect --output runs/groups.jsonl"],
  evolution: ["This folder has no evolution yet.", "Its members appear here, a generation at a time:", "bough evolve --train-file examples/household-pairs.jsonl --output-dir runs/evolve --mutate learning_rate=1e-5..1e-3"],
  evaluation: ["This folder has no evaluation yet.", "Measure one or more models on the same tasks:", "bough eval --environment household --model expert random --episodes 20 --output runs/eval"],
};

export function empty(page) {
  const [what, how, command] = HOW[page];
  return h("div", { class: "nothing" },
    h("p", {}, h("b", {}, what)),
    h("p", {}, how),
    h("pre", { class: "command" }, h("code", {}, command)),
    h("p", { class: "faint" }, "Write the result into this folder, then reload the page."),
  );
}
