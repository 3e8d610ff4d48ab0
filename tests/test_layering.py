"""Dependencies point inwards, core stays light, and the public names are these."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_core

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core/src/lightning_core"
SOURCES = [ROOT / "core/src", *ROOT.glob("plugins/*/src"), *ROOT.glob("backends/*/src")]
PACKAGES = {
    path.name: path for source in SOURCES for path in source.iterdir() if path.name.isidentifier()
}
PROTOCOLS = {
    "records", "errors", "capability", "task", "reward", "rollout", "trace", "adapter", "engine", "sampling", "runs",
    "backend", "optimization", "executor", "findings", "recipe", "strategy", "strategy_changes", "strategy_schema",
    "template", "slots", "shown",
}  # fmt: skip
HEAVY = {
    "torch", "transformers", "langgraph", "langchain", "langchain_core", "openai", "litellm", "opentelemetry", "httpx",
    "httpx2", "pydantic", "autogen_core", "agents", "verl", "ray", "vllm", "gepa", "optuna", "numpy", "sqlalchemy",
}  # fmt: skip
LAYERS = {
    "running": {
        "agents",
        "children",
        "client",
        "engines",
        "folder",
        "grading",
        "instrument",
        "litellm_engine",
        "plugins",
        "redaction",
        "running",
        "server",
        "settings",
        "sources",
        "tokens",
        "trackers",
        "wire",
        "worker",
    },
    "learn": {"learn"},
    "prompts": {"prompts"},
    "store": {"store"},
    "gateway": {"gateway", "store", "tokens", "wire", "provider"},
    "instrument": {"instrument", "frameworks"},
    "litellm_engine": {"litellm_engine", "children", "instrument", "provider", "redaction"},
    "trained": {"trained", "redaction", "provider"},
    "server": {"server", "gateway", "store", "tokens", "wire", "children"},
    "worker": {
        "worker",
        "instrument",
        "frameworks",
        "agents",
        "client",
        "wire",
        "plugins",
        "children",
        "tokens",
    },
}
"""What each part may import of ours beside the protocols."""


def imports(path: Path, *, top_level: bool) -> set[str]:
    """The modules that a file imports: at its top level, or anywhere; `TYPE_CHECKING` blocks left out."""
    tree = ast.parse(path.read_text())
    found = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.add(child.module)
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            if not (top_level and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))):
                visit(child)

    visit(tree)
    return found


def parts(found: set[str]) -> set[str]:
    return {name.split(".")[1] for name in found if name.startswith("lightning_core.")} & {
        path.stem for path in CORE.iterdir()
    }


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_protocols_import_nothing_of_ours_but_each_other(name):
    assert parts(imports(CORE / f"{name}.py", top_level=False)) <= PROTOCOLS


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_each_part_imports_only_what_lies_further_in(layer):
    for path in (CORE / layer).rglob("*.py"):
        outside = parts(imports(path, top_level=False)) - PROTOCOLS - LAYERS[layer]
        assert not outside, f"{path.relative_to(ROOT)} imports {outside}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_nothing_imports_a_framework_at_import(package):
    for path in PACKAGES[package].rglob("*.py"):
        heavy = {name.split(".")[0] for name in imports(path, top_level=True)} & HEAVY
        inside = path.relative_to(PACKAGES[package]).parts
        if package != "lightning_core" and inside != ("__init__.py",):
            continue  # A plugin's inner modules may, once its entry point does not import them.
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - {"lightning_core"}))
def test_importing_a_plugin_imports_no_framework(package):
    # Nor the instrumentation: every command loads the plugins, and few of them run an agent.
    unwanted = HEAVY | {"lightning_core.instrument"}
    code = f"import sys, {package}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - {"lightning_core"}))
def test_no_plugin_imports_a_sibling(package):
    for path in PACKAGES[package].rglob("*.py"):
        ours = {
            n.split(".")[0] for n in imports(path, top_level=False) if n.startswith("lightning_")
        }
        assert ours <= {package, "lightning_core"}, path.relative_to(ROOT)


def test_import_of_core_imports_nothing_but_itself():
    code = "import sys; import lightning_core; print([m for m in sys.modules if m in ('aiohttp', 'msgspec', 'pluggy', 'rich', 'click')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_all_there():
    assert lightning_core.__all__ == sorted(lightning_core.__all__)
    assert sorted(lightning_core._HOME) == lightning_core.__all__
    for name in lightning_core.__all__:
        assert getattr(lightning_core, name) is not None
    with pytest.raises(AttributeError, match="no attribute `nothing`"):
        _ = lightning_core.nothing


def test_no_top_level_package_takes_a_name_that_is_not_ours():
    assert PACKAGES
    assert all(name.startswith("lightning_") for name in PACKAGES)
