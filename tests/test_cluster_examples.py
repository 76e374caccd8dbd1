"""The files in examples/cluster/ and the commands in docs/cluster.md are what Slurm, KubeRay, Ray and Bough accept."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from bough.experiments.recipe import SHIPPED
from tests.blocks import ROOT, check_line, lines

EXAMPLES = ROOT / "examples" / "cluster"
SLURM, KUBERAY, CLOUD = (EXAMPLES / name for name in ("slurm.sh", "kuberay.yaml", "cloud.yaml"))
PAGE = (ROOT / "docs" / "cluster.md").read_text()
# In a process of its own: other tests check that Bough does not import Ray.
CHECKS = """
import json, sys
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli
from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

asked, problems = json.load(sys.stdin), []
config = prepare_config(asked["cloud"])
try:
    validate_config(config)
except Exception as error:
    problems.append(f"cloud.yaml: {error}")
for name, *words in asked["commands"]:
    try:
        cli.commands[name].make_context(name, list(words))
        if name == "symmetric-run":
            start = curate_and_validate_ray_start_args(words[: words.index("--")])
            cli.commands["start"].make_context("start", start)
    except Exception as error:
        problems.append(f"ray {name} {words}: {error}")
print(json.dumps({"problems": problems}))
"""
FAKES = {
    "scontrol": 'echo "scontrol $*" >> "$CALLS"; printf "node1\\nnode2\\nnode3\\n"',
    # Runs what comes after its own options, as Slurm would on each node.
    "srun": 'echo "srun $*" >> "$CALLS"; while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "hostname": 'echo "10.0.0.7 192.168.1.7 "',
    "ray": """[[ "$1" == get-auth-token ]] && exit
printf "%s\\n" "$RAY_AUTH_MODE" "$@" > "$RAY_CALL"
""",
}


def submit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as Slurm does on the first of three nodes, with programs that record what they are asked."""
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "activate").write_text("")
    slurm = {"SUBMIT_DIR": str(folder), "JOB_NODELIST": "node[1-3]", "JOB_NUM_NODES": "3", "CPUS_PER_TASK": "16"}
    environment = {f"SLURM_{key}": value for key, value in slurm.items()} | {
        "SLURM_GPUS_ON_NODE": "2",
        "PATH": f"{folder}:{os.environ['PATH']}",
        "BOUGH_VENV": str(folder / "venv"),
        "CALLS": str(folder / "calls"),
        "RAY_CALL": str(folder / "ray-call"),
    }
    command = ["bash", str(SLURM), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def slurm_command(folder: Path) -> tuple[list[str], list[str]]:
    """What follows `ray`, and Bough's own command."""
    mode, *words = (folder / "ray-call").read_text().splitlines()
    assert mode == "token"
    return words, words[words.index("--") + 1 :]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Ray's own code makes of the cloud's file and of every `ray` command in the files and on the page."""
    folder = tmp_path_factory.mktemp("slurm")
    assert submit(folder).returncode == 0
    commands = [slurm_command(folder)[0], *ray_commands(), *kuberay_commands()]
    asked = json.dumps({"cloud": yaml.safe_load(CLOUD.read_text()), "commands": commands})
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], input=asked, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "commands": commands}


def ray_commands() -> list[list[str]]:
    """Every `ray …` of the cloud's file and of the page, split into words without `ray`."""
    cloud = yaml.safe_load(CLOUD.read_text())
    started = [*cloud["head_start_ray_commands"], *cloud["worker_start_ray_commands"]]
    comments = re.findall(r"^# +(ray \w.*)$", CLOUD.read_text(), flags=re.MULTILINE)
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE))
    said = [*(part for line in started for part in line.split("; ")), *comments, *lines(blocks)]
    found = [shlex.split(line.partition(" > ")[0], comments=True) for line in said if line.startswith("ray ")]
    return [words[1:] for words in found]


def kuberay_commands() -> list[list[str]]:
    """The `ray start` that KubeRay makes of a group's parameters."""
    cluster = list(yaml.safe_load_all(KUBERAY.read_text()))[-1]["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    return [["start", *(f"--{key}={value}" for key, value in group["rayStartParams"].items())] for group in groups]


def bough_commands() -> list[str]:
    """Every command line of Bough in the files and inside the page's other commands; its own are read in tests/docs."""
    job = list(yaml.safe_load_all(KUBERAY.read_text()))[-1]
    return [job["spec"]["entrypoint"], *re.findall(r"'(bough .+)'", CLOUD.read_text() + PAGE)]


def test_slurm_starts_ray_on_all_nodes_and_bough_on_the_first(tmp_path: Path):
    done = submit(tmp_path, "--set", "seed=3")
    assert done.returncode == 0, done.stderr
    words, command = slurm_command(tmp_path)
    assert words[0] == "symmetric-run"
    start = words[: words.index("--")]
    assert start[start.index("--address") + 1] == "10.0.0.7:6379"
    assert start[start.index("--min-nodes") + 1] == "3"
    assert (start[start.index("--num-cpus") + 1], start[start.index("--num-gpus") + 1]) == ("16", "2")
    # All nodes get the same options, and one that joins refuses those of the head.
    assert not {"--head", "--port", "--redis-shard-ports", "--include-dashboard", "--block"} & set(start)
    first, last = [call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith("srun")]
    assert "--nodelist=node1" in first and first.endswith("hostname --all-ip-addresses")
    assert last.startswith("srun --nodes=3 --ntasks-per-node=1 --cpus-per-task=16")
    assert command[-2:] == ["--set", "seed=3"] and command[command.index("--cluster") + 1] == "auto"
    check_line(shlex.join(command))


def test_the_kubernetes_file_follows_the_crd():
    claim, job = yaml.safe_load_all(KUBERAY.read_text())
    schema = yaml.safe_load((ROOT / "tests" / "kuberay.schema.yaml").read_text())
    Draft202012Validator.check_schema(schema)
    problems = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(job)]
    assert problems == []
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (volume,), (container,) = pod["volumes"], pod["containers"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        # Run folder and cache are on the volume in every pod.
        (mount,) = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        folder = mount["mountPath"]
        assert f"--output-dir {folder}/" in job["spec"]["entrypoint"]
        assert container["env"][0]["value"].startswith(folder)
    assert claim["kind"] == "PersistentVolumeClaim" and claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_ray_accepts_every_command(checked: dict[str, Any]):
    assert {words[0] for words in checked["commands"]} >= {"symmetric-run", "start", "up", "exec", "rsync-down", "down"}
    assert checked["problems"] == []


def test_the_files_and_the_extra_agree_on_rays_version():
    constraint = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert constraint is not None
    text = KUBERAY.read_text() + CLOUD.read_text()
    named = re.findall(r"(?:rayproject/ray:|ray\[default\]==|rayVersion: )(\d+\.\d+\.\d+)", text)
    assert len(named) == 4 and set(named) == {constraint[1]}


@pytest.mark.parametrize("line", sorted(set(bough_commands())))
def test_bough_accepts_every_command(line: str):
    check_line(line)
    recipe = shlex.split(line)[2]
    assert (SHIPPED / f"{recipe}.yaml").is_file()
