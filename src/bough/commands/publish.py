"""`bough.merge`, `bough.card`, `bough.push`: what is done with trained weights."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from rich.filesize import decimal

from bough.commands.models import ModelLike, TrainedModel, model_name
from bough.commands.objects import StrPath
from bough.commands.table import Command
from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.errors import BoughError, InputError
from bough.files import MAX_JSON, read_small
from bough.ledger import plural
from bough.report.card import RUN, Card, CardConfig, HubId, write_card
from bough.report.evaluated import Subject, find_subject
from bough.report.lineage import base_model, read_json
from bough.terminal import console


class MergeConfig(ReportConfig):
    """Merges an adapter into its base model and writes the result as a model of its own."""

    adapter: Path = setting(positional=True, description="the folder of the adapter")
    output: Path = setting(short="-o", description="the folder to write, or a file that ends in .gguf, for llama.cpp")
    gguf_type: Literal["f32", "f16", "bf16", "q8_0"] | None = Field(
        None, description="data type of the weights in a GGUF file (default: f16)"
    )
    model: str | None = Field(None, description="the base model (default: the one named in the adapter)")

    @model_validator(mode="after")
    def _a_type_needs_its_file(self) -> Self:
        if self.gguf_type and self.output.suffix != ".gguf":
            raise ValueError(f"`gguf_type` needs an `output` that ends in .gguf; it is {self.output}")
        return self


class PushConfig(ReportConfig):
    """Uploads a trained model and its card to the Hub, with the account of `hf auth login` or HF_TOKEN."""

    run: Path = setting(positional=True, description=RUN)
    repo: HubId = Field(description="the repository, org/name; it is created if it does not exist")
    private: bool = Field(False, description="create the repository as private")
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, if the run only has it as a local folder"
    )
    message: str = Field("Upload with bough push", min_length=1, description="commit message")
    dry_run: bool = Field(False, description="list the files that would be uploaded; upload nothing")


@settings_of(MergeConfig, "model")
def merge(adapter: StrPath, output: StrPath, *, base_model: ModelLike | None = None, **settings: Any) -> Path:
    """Write an adapter into its base model: a folder, or a file for llama.cpp where the name ends in .gguf.

    `adapter` is a trained model or an adapter's folder, `base_model` the model it was
    trained on where the adapter does not name it. Returns the path of the new model.
    """
    base = None if base_model is None else model_name(base_model)
    config = make_config(MergeConfig, "merge", settings, adapter=Path(adapter), output=Path(output), model=base)
    _merge(config)
    return config.output


@settings_of(CardConfig)
def card(run: TrainedModel | StrPath, **settings: Any) -> Card:
    """Write the model card of what a run has trained; returns its text, its path and what is missing in it.

    `run` is a run folder, or what a training function returned.
    """
    return write_card(make_config(CardConfig, "card", settings, run=_run_folder(run)))


@settings_of(PushConfig)
def push(run: TrainedModel | StrPath, repo: str, **settings: Any) -> str:
    """Upload weights and card to the Hugging Face Hub as `repo`, org/name; returns the address of the commit."""
    config = make_config(PushConfig, "push", settings, run=_run_folder(run), repo=repo)
    release = make_release(find_subject(config.run, []), config.base_model)
    return upload(release, config.repo, private=config.private, message=config.message)


def _run_folder(run: TrainedModel | StrPath) -> Path:
    return run.path.parent if isinstance(run, TrainedModel) else Path(run)


# `bough card` and `bough push`.


def card_command(config: CardConfig) -> int:
    made = write_card(config)
    for missing in made.missing:
        console.err().print(f"note: {console.printable(missing)}", style="yellow", markup=False)
    if config.as_json:
        console.print_json({"card": str(made.path), "missing": made.missing})
    else:
        console.out().print(f"card written to {made.path}", markup=False)
    return 0


def push_command(config: PushConfig) -> int:
    subject = find_subject(config.run, [])
    release = make_release(subject, config.base_model)
    out = console.err() if config.as_json else console.out()
    sizes = {
        name: len(content.encode()) if isinstance(content, str) else content.stat().st_size
        for name, content in release.items()
    }
    for name, size in sizes.items():
        note = " (the base model by its name on the Hub)" if isinstance(release[name], str) else ""
        out.print(f"{decimal(size):>10}  {name}{note}", markup=False)
    if config.repo not in read_small(subject.weights / "README.md", MAX_JSON, "replace"):
        hint = f"bough card {config.run} --repo {config.repo} --overwrite"
        note = f"note: the card does not mention {config.repo}; `{hint}` writes one that does"
        console.err().print(note, style="yellow", markup=False)
    address, files = None, plural(len(release), "file")
    if config.dry_run:
        visibility = " as a private repository" if config.private else ""
        out.print(f"{files} would be uploaded to {config.repo}{visibility}; nothing was uploaded", markup=False)
    else:
        address = upload(release, config.repo, private=config.private, message=config.message)
        out.print(f"{files} uploaded to {address}", markup=False)
    if config.as_json:
        console.print_json({"repo": config.repo, "files": sizes, "uploaded_to": address})
    return 0


# `bough merge`: an adapter into its base model.


def _merge(config: MergeConfig) -> str:
    from bough.policy.load import merge_adapter

    return merge_adapter(config.adapter, config.output, base=config.model, gguf_type=config.gguf_type)


def merge_command(config: MergeConfig) -> int:
    base = _merge(config)
    if config.as_json:
        console.print_json({"adapter": str(config.adapter), "base": base, "output": str(config.output)})
    else:
        console.out().print(f"{config.adapter} merged into {base}, written to {config.output}", markup=False)
    return 0


# A release: the files needed to load the weights. An adapter names its base model as the Hub does.

# No checkpoints, no pickles, no hidden files.
WANTED = (
    "README.md", "LICENSE*", "adapter_config.json", "adapter_model*.safetensors", "config.json",
    "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer*.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip


Release = dict[str, Path | str]


def make_release(subject: Subject, hub_id: str | None) -> Release:
    """The files of the weights by name, with the new text of those that are changed. InputError if one is missing."""
    folder = subject.weights
    files: Release = {path.name: path for pattern in WANTED for path in sorted(folder.glob(pattern)) if path.is_file()}
    for path in files.values():
        if not Path(path).resolve().is_relative_to(subject.run.resolve()):
            raise InputError(f"{path} is a link that leads out of the folder; it is not uploaded")
    if "README.md" not in files:
        raise InputError(f"{folder} has no model card yet; `bough card {subject.run}` writes one to look at first")
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{folder}: it has no weights (*.safetensors)")
    if subject.is_adapter:
        base = base_model(subject.lineage.base, hub_id)
        if base.hub_id is None:
            raise InputError(
                f"{folder}: the base model is only known as {base.name}, which others cannot load; "
                "give its name on the Hub with --base-model org/name"
            )
        settings = read_json(folder / "adapter_config.json", {})
        settings["base_model_name_or_path"] = base.hub_id
        files["adapter_config.json"] = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    return dict(sorted(files.items()))


# Uploads a release through huggingface_hub and explains its errors.

LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


def upload(release: Release, repo: str, *, private: bool, message: str) -> str:
    """Creates the repository if it does not exist, commits the files, and returns the commit's address."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # The HTTP library's own error class; huggingface_hub decides which library that is.
    unreachable = HfHubHTTPError.__mro__[1]
    assert issubclass(unreachable, Exception)
    token = get_token()
    if token is None:
        raise InputError(f"not logged in to the Hub; {LOGIN}")
    api = HfApi(token=token, library_name="bough")
    try:
        # None: the default of the organisation.
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise InputError(f"{repo} exists on the Hub and is public; make it private there, or omit --private")
        with tempfile.TemporaryDirectory(prefix="bough-push-") as folder:
            for name, content in release.items():
                if isinstance(content, str):
                    (Path(folder) / name).write_text(content, encoding="utf-8")
                else:  # weights are linked, not copied
                    (Path(folder) / name).symlink_to(content.resolve())
            commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except OfflineModeIsEnabled:
        raise InputError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it") from None
    except HfHubHTTPError as error:
        status, said = error.response.status_code, (error.server_message or "").replace(token, "…")
        hint = f"; {LOGIN}" if status in (401, 403) else ""
        raise BoughError(f"the Hub refused {repo} with {status}{': ' if said else ''}{said}{hint}") from None
    except (unreachable, OSError) as error:
        why = (str(error).partition("\n")[0] or type(error).__name__).replace(token, "…")
        raise BoughError(f"the Hub cannot be reached: {why}") from None
    return str(commit.commit_url)


COMMANDS = {
    "merge": Command(
        MergeConfig,
        merge_command,
        "  bough merge runs/dpo/final -o model\n  bough merge runs/dpo/final -o model.gguf --gguf-type q8_0",
    ),
    "card": Command(
        CardConfig,
        card_command,
        "  bough card runs/demo --license apache-2.0\n"
        "  bough card runs/dpo --repo org/name --evaluations runs/eval --overwrite",
    ),
    "push": Command(
        PushConfig,
        push_command,
        "  bough push runs/demo --repo org/name --dry-run\n  bough push runs/demo --repo org/name --private",
    ),
}
