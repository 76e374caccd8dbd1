"""`bough.doctor` and `bough.check`: is the data fit to train on, and does an environment keep its contract?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bough.api.inputs import EnvironmentLike, Source, as_file, environment_name
from bough.api.models import ModelLike, model_name
from bough.api.settings import make_config, settings_of
from bough.calls.diagnosis import Diagnosis, Finding, diagnose
from bough.config.doctor import DoctorConfig
from bough.config.play import EnvCheckConfig
from bough.environments.check import CheckReport
from bough.policy.load import load_call_builder
from bough.rollouts.check import check_configured


class Checkup:
    """What `bough.doctor` found. `ok` is False where training on the data would be a mistake."""

    def __init__(self, diagnosis: Diagnosis, findings: list[Finding]) -> None:
        self.report: dict[str, Any] = diagnosis.to_json()
        self.findings = findings
        self._calls, self._tokens = str(diagnosis.calls), diagnosis.tokens

    @property
    def ok(self) -> bool:
        return all(finding.level != "fail" for finding in self.findings)

    def __repr__(self) -> str:
        tokens = f"{self._tokens['trained']:,} tokens trained, {self._tokens['context']:,} of context"
        findings = [f"{one.level.upper()} {one.name}: {one.message}" for one in self.findings]
        return "\n".join([self._calls, tokens, *(findings or ["OK: only replies are trained, and each ends its turn"])])


@settings_of(DoctorConfig, "file", "output")
def doctor(records: Source, model: ModelLike = "smollm2", **settings: Any) -> Checkup:
    """Count the tokens that a model would be trained on, and say what is wrong with them.

    `records` are in memory or the path of a data file; `model` gives the chat template.
    """
    with as_file(records) as file:
        config = make_config(DoctorConfig, "doctor", settings, file=file, model=model_name(model), output=None)
        builder = load_call_builder(
            config.model, config.calls.chat_template, max_length=config.calls.max_length, stride=config.calls.stride
        )
        diagnosis = diagnose(config, builder, place_of=lambda place: f"{Path(place.file).name}:{place.line}")
    return Checkup(diagnosis, list(diagnosis.findings()))


@settings_of(EnvCheckConfig)
def check(environment: EnvironmentLike, **settings: Any) -> CheckReport:
    """Test an environment of your own against the contract; `problems` of the result is empty if it keeps it.

    `environment` is a name or a class. A class that another process cannot import, such as
    one of a notebook, is tested in this process only.
    """
    config = make_config(EnvCheckConfig, "check", settings, environment=environment_name(environment))
    elsewhere = environment if isinstance(environment, str) else importable_name(environment)
    return check_configured(config, elsewhere)


def importable_name(environment_class: type[Any]) -> str | None:
    """The name by which another process finds the class; None for one of a notebook, or inside a function."""
    module = sys.modules.get(environment_class.__module__)
    if module is None or "<locals>" in environment_class.__qualname__:
        return None
    file = getattr(module, "__file__", None)
    if environment_class.__module__ == "__main__":
        return f"{file}:{environment_class.__qualname__}" if file else None
    return f"{environment_class.__module__}:{environment_class.__qualname__}"
