"""verifiers' configuration of one taskset and its agent, from the options of the environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import Field, JsonValue, ValidationError
from verifiers.v1.utils.loaders import taskset_class as find_taskset

from bough.config.base import Config
from bough.data.base import row_error
from bough.errors import InputError, describe_failure

# Chat, and the tools of the task; verifiers' own default is `bash`, which runs commands.
HARNESS, OF_VERIFIERS = "null", "bash"
# Written as a name alone, these are a mapping with that name under this key.
NAMED = {"harness": "id", "runtime": "type"}
OURS = ("client", "model", "sampling", "retries")


class VerifiersSettings(Config):
    """The taskset, and the harness that plays it."""

    taskset: dict[str, JsonValue] = Field({}, description="settings of the taskset, such as {split: test}")
    agent: dict[str, JsonValue] = Field(
        {},
        description="settings of verifiers' agent, such as {harness: bash, runtime: docker}; default: the "
        "taskset's own harness or else null (chat and the task's tools), in a process on this machine",
    )
    success_reward: float = Field(1.0, description="an episode with at least this reward is a success")
    allow_local_code: bool = Field(
        False, description="allow a harness that runs the model's code on this machine, without isolation"
    )


def taskset_class(taskset_id: str) -> Any:
    """The class of an installed taskset. Raises InputError where there is none."""
    try:
        return find_taskset(taskset_id)
    except (Exception, SystemExit) as error:  # it imports a module
        raise InputError(describe_failure(f"environment 'verifiers:{taskset_id}'", error)) from error


def load_taskset(config: Any) -> Any:
    """The taskset of a configuration; its tasks are not made yet."""
    return vf.load_taskset(config.taskset)


def env_config(taskset_id: str, settings: VerifiersSettings) -> Any:
    """verifiers' configuration. Raises InputError where the options are wrong or cannot be combined."""
    where = f"environment 'verifiers:{taskset_id}'"
    if _names_code(settings.taskset):
        raise InputError(f"{where}: fn in --options taskset names code; use --rewards for rewards of your own")
    if given := [name for name in OURS if name in settings.agent]:
        raise InputError(f"{where}: --options agent cannot set {given[0]}, which is set by the run")
    seat, declared = _only_agent(taskset_id, where)
    agent: dict[str, Any] = {"runtime": "subprocess", **settings.agent}
    if declared.harness is None:
        agent.setdefault("harness", default_harness(taskset_id))
    for name, key in NAMED.items():
        if isinstance(agent.get(name), str):
            agent[name] = {key: agent[name]}
    try:
        config = vf.resolve_env_config({"taskset": {**settings.taskset, "id": taskset_id}, seat: agent})
    except ValidationError as error:
        raise InputError(f"{where}: {row_error(error)}") from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # a harness that cannot be found
        raise InputError(f"{where}: {error}") from None
    _check_agent(config, seat, where, allow_local_code=settings.allow_local_code)
    return config


def default_harness(taskset_id: str) -> str:
    """The harness of a taskset's own package, if it has one."""
    found: str = vf.default_harness_id(taskset_id)
    return HARNESS if found == OF_VERIFIERS else found


def need_uv() -> None:
    """Puts uv on the path. Without it verifiers would fetch an installer and run it."""
    if shutil.which("uv") is not None:
        return
    try:
        from uv import find_uv_bin

        folder = Path(find_uv_bin()).parent
    except (ImportError, FileNotFoundError):
        raise InputError("harnesses of verifiers need the program uv; run: pip install uv") from None
    os.environ["PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PATH")]))


def _only_agent(taskset_id: str, where: str) -> tuple[str, Any]:
    """The name of the agent in the taskset's environment, and how it is declared there."""
    fields = vf.env_config_type(taskset_id).model_fields
    agents = {name: field.default for name, field in fields.items() if isinstance(field.default, vf.AgentConfig)}
    if len(agents) != 1:
        raise InputError(f"{where} has {len(agents)} agents ({', '.join(agents)}); only one can be played")
    return next(iter(agents.items()))


def _check_agent(config: Any, seat: str, where: str, *, allow_local_code: bool) -> None:
    runtime = getattr(config, seat).runtime
    if not isinstance(runtime, vf.SubprocessConfig):
        return
    need_uv()
    harness = vf.load_harness(config.agent_harnesses()[seat])
    task = vf.task_type(config.taskset.id)
    needing = [what for what, one in (("harness", harness), ("tasks", task)) if one.NEEDS_CONTAINER]
    if needing:
        raise InputError(f"{where}: its {needing[0]} need a container; give --options 'agent={{runtime: docker}}'")
    if harness.EXECUTES_CODE and not allow_local_code:
        raise InputError(
            f"{where}: the harness {harness.config.id} would run the model's code on this machine; give --options "
            "'agent={runtime: docker}', or allow_local_code=true if you accept that"
        )


def _names_code(value: Any) -> bool:
    """Whether a function to import is named somewhere in it: options may come from a file."""
    if isinstance(value, Mapping):
        return "fn" in value or any(map(_names_code, value.values()))
    return isinstance(value, list) and any(map(_names_code, value))
