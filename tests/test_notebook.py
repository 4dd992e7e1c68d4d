"""The example notebook runs from its first cell to its last, in a kernel of this Python."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_example_notebook(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    import nbformat
    from nbclient import NotebookClient

    source = repository / "examples" / "explore.ipynb"
    notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    client = NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(source.parent)}})
    client.execute()
    shown = [_result(cell) for cell in notebook.cells if cell.cell_type == "code"]
    run, report, frame, plot, answer, closed = shown
    assert "smollm2" in run["text/html"] and "211 of 211 layers recorded" in run["text/html"]
    assert report["text/plain"].startswith("('model.layers.")
    assert "shape: (8, 6)" in frame["text/plain"] and "model.layers.11.mlp.down_pro" in frame["text/html"]
    assert "<polyline" in plot["text/html"]
    assert answer["text/html"].count("down_proj") == 3 and closed == {}


def _result(cell: object) -> dict[str, str]:
    """What the last line of a cell shows, by MIME type."""
    found = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]  # type: ignore[index]
    return dict(found[-1]["data"]) if found else {}
