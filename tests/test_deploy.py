"""What can be checked of the deployment files without a Docker engine, a cluster or a booted systemd."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from onyx import __version__
from onyx.settings import Settings

ROOT = Path(__file__).parent.parent
TOOLS = Path(sys.executable).parent
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMPOSE = ROOT / "docker-compose.yml"
OVERRIDE = ROOT / "docker-compose.cpu.yml"
FILES = [ROOT / "Dockerfile", COMPOSE, OVERRIDE, *MANIFESTS, *UNITS]


class Loader(yaml.SafeLoader):
    """Knows compose's own tag."""


Loader.add_constructor("!reset", lambda loader, node: None)


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(path.read_text(), Loader)  # noqa: S506 - a SafeLoader
    return content


def documents() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def test_the_dockerfile_is_linted() -> None:
    run(TOOLS / "hadolint", "Dockerfile")


def test_the_image_runs_without_privileges_and_everything_is_pinned() -> None:
    text = (ROOT / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert "USER 10001:10001" in last
    assert "HEALTHCHECK" in last
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+\.\d+\S*$", text, flags=re.MULTILINE)
    assert text.count("-c constraints.txt") == text.count("pip install")


def test_yaml_is_linted() -> None:
    run(TOOLS / "yamllint", "--strict", COMPOSE, OVERRIDE, ROOT / "deploy", ROOT / ".github", ROOT / "mkdocs.yml")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-workflows", "workflows/ci.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/bug.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/wish.yml"),
    ],
)
def test_files_of_the_forge_obey_their_schemas(schema: str, path: str) -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / ".github" / path)


def test_ci_calls_the_targets_that_a_developer_calls() -> None:
    called = set(re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    (job,) = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values()
    assert set(job["strategy"]["matrix"]["target"]) == called | {"coverage"}
    assert called | {"coverage"} <= targets


def test_extras_that_are_named_exist() -> None:
    """In docs, in messages and in the image."""
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    files = [ROOT / "Dockerfile", ROOT / "README.md", ROOT / "Makefile"]
    text = "".join(path.read_text() for path in (*files, *(ROOT / "docs").glob("*.md"), *(ROOT / "onyx").rglob("*.py")))
    named = re.findall(r"'(?:\.|onyx-finetune)\[([\w,]+)\]'", text)
    assert {"postgres", "wandb"} <= {extra for each in named for extra in each.split(",")} <= known


def test_compose_obeys_its_schema() -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_compose_services_are_watched_and_pinned() -> None:
    services = load(COMPOSE)["services"]
    assert set(services) == {"service", "runner", "database"}
    assert set(load(OVERRIDE)["services"]) <= set(services)
    for name, service in services.items():
        assert "healthcheck" in service, name
        assert re.search(r":\d+\.\d+", service["image"]), name
    assert services["service"]["image"] == services["runner"]["image"] == f"onyx:{__version__}"


@pytest.mark.parametrize(
    "path", [path for path in MANIFESTS if path.stem != "kustomization"], ids=lambda path: path.stem
)
def test_manifests_obey_kubernetes(path: Path) -> None:
    run(TOOLS / "kubernetes-validate", "--strict", path)


def test_manifests_name_what_is_there() -> None:
    listed = load(ROOT / "deploy" / "kubernetes" / "kustomization.yaml")["resources"]
    assert {*listed, "kustomization.yaml", "secret.example.yaml"} == {path.name for path in MANIFESTS}
    names = {(each["kind"], each["metadata"]["name"]) for each in documents() if each["kind"] != "Kustomization"}
    for each in documents():
        assert "namespace" not in each.get("metadata", {})
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"onyx:{__version__}"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {("Secret", source["secretRef"]["name"]) for source in container["envFrom"]} <= names
        claimed = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        claims = {each["claimName"] for each in claimed}
        assert {("PersistentVolumeClaim", claim) for claim in claims} <= names


def test_probes_ask_paths_that_the_service_has() -> None:
    from onyx.api.app import create_app

    served = set(create_app(Settings(home=ROOT)).openapi()["paths"])
    text = "".join(path.read_text() for path in FILES)
    probed = set(re.findall(r"/(?:healthz|readyz|metrics)\b", text))
    assert probed == {"/healthz", "/readyz", "/metrics"}
    assert probed <= served


def test_every_setting_that_is_named_exists() -> None:
    known = {f"ONYX_{name.upper()}" for name in Settings.model_fields}
    for path in FILES:
        assert set(re.findall(r"ONYX_[A-Z_]+", path.read_text())) <= known, path.name


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_are_understood_by_systemd(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    for each in UNITS:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", each.read_text())  # Onyx is not installed there
        (tmp_path / each.name).write_text(text)
    assert run(analyze, "verify", "--man=no", tmp_path / unit.name) == ""


def test_a_stop_leaves_ranks_the_time_to_save() -> None:
    grace = Settings(home=ROOT).grace_seconds
    unit = (ROOT / "deploy" / "systemd" / "onyx-runner.service").read_text()
    seconds = [
        int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]),
        int(load(COMPOSE)["services"]["runner"]["stop_grace_period"].removesuffix("s")),
        *(
            each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            for each in documents()
            if each["kind"] == "StatefulSet"
        ),
    ]
    assert min(seconds) >= 2 * grace


def test_no_secret_is_in_a_file() -> None:
    given = re.compile(r"(?:PASSWORD|TOKEN)(?:_FILE)?[:=] *[\"']?([^\s\"'/][^\s\"']*)|://\w+:([^@\s]+)@")
    for path in FILES:
        found = [word for pair in given.findall(path.read_text()) for word in pair if word]
        assert set(found) <= {"CHANGE-ME"}, path.name
