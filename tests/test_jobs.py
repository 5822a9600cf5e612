"""Jobs files: what they are read as, what is kept, and that one job's error stays its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.example import example
from vitpe_deploy.cli import bench_main, export_main
from vitpe_deploy.errors import UsageError
from vitpe_deploy.exit_codes import worst
from vitpe_deploy.jobs import run as jobs_run
from vitpe_deploy.jobs.file import Flag, Job, read_jobs
from vitpe_deploy.jobs.run import Runner
from vitpe_deploy.jobs.summary import markdown, merged
from vitpe_deploy.progress import Silent

FLAGS = (
    Flag("res", repeats=True),
    Flag("pe"),
    Flag("precision"),
    Flag("threads"),
    Flag("simplify", switch=True, negative="no-simplify"),
    Flag("layers", switch=True),
    Flag("model-kwarg", repeats=True),
)


def jobs_of(folder: Path, text: str, *, many: bool = False) -> list[tuple[str, list[str]]]:
    path = folder / "jobs.toml"
    path.write_text(text, encoding="utf-8")
    return [(job.name, list(job.argv)) for job in read_jobs(path, FLAGS, many=many)]


def test_lists_repeat_a_flag_or_make_jobs(tmp_path: Path) -> None:
    found = jobs_of(
        tmp_path,
        """
        [defaults]
        threads = 2
        simplify = false

        [[job]]
        name = "a"
        model = "m"
        res = [224, "384x512"]
        pe = ["x", "y"]
        model-kwarg = { depth = 6, pe.base = 10 }

        [[job]]
        model = ["timm:n", "o"]
        threads = 1
        layers = true
        """,
    )
    sizes = ["--res", "224", "--res", "384x512"]
    kwargs = ["--model-kwarg", "depth=6", "--model-kwarg", "pe={'base': 10}"]
    assert [name for name, _ in found] == ["a-x", "a-y", "02-timm-n-timm-n", "02-timm-n-o"]
    for name, pe in (("a-x", "x"), ("a-y", "y")):
        argv = dict(found)[name]
        assert argv[:3] == ["m", "--pe", pe]
        assert argv[3:] == ["--threads", "2", "--no-simplify", *sizes, *kwargs]
    assert dict(found)["02-timm-n-o"] == ["o", "--threads", "1", "--no-simplify", "--layers"]


def test_command_of_many_takes_them_together(tmp_path: Path) -> None:
    ((name, argv),) = jobs_of(tmp_path, '[[job]]\nartifact = ["a.onnx", "b.onnx"]', many=True)
    assert (name, argv) == ("01-a.onnx", ["a.onnx", "b.onnx"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[job]]\nmodel='m'\nresolution=3", "'resolution' is not a flag"),
        ("[[job]]\nres=3", "names no model"),
        ("[[job]]\nmodel='m'\nlayers='yes'", "layers is true or false"),
        ("[[job]]\nmodel='m'\nthreads=true", "threads takes a value"),
        ("[[jobs]]\nmodel='m'", r"\[jobs\] is not known"),
        ("", "holds no jobs"),
        ("[[job]]\nname='a'\nmodel='m'\n[[job]]\nname='a'\nmodel='n'", "two jobs are called 'a'"),
    ],
)
def test_mistakes_stop_everything_before_it_begins(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        jobs_of(tmp_path, text)


def test_worst_exit_code() -> None:
    assert worst([0, 0]) == 0
    assert worst([0, 4, 3]) == 3
    assert worst([4, 2, 0]) == 2
    assert worst([2, 3, 1]) == 1
    assert worst([1, 130]) == 130


class Children:
    """Stands in for the processes: what each job prints, by its model."""

    def __init__(self, said: dict[str, tuple[int, str]]) -> None:
        self.said = said
        self.ran: list[str] = []

    def Popen(self, command: list[str], **_: Any) -> Any:  # noqa: N802
        model = command[4]
        self.ran.append(model)
        code, out = self.said[model]

        class Process:
            returncode = code

            def communicate(self) -> tuple[str, None]:
                return out, None

        return Process()


def test_finished_jobs_are_kept_and_failed_ones_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.onnx"
    file.write_bytes(b"1")
    record = {"path": str(file), "sha256": jobs_run.sha256_of(file), "size_bytes": 1}
    good = json.dumps({"schema": "vitpe.export/1", "artifacts": [record], "parity": []})
    bad = json.dumps({"schema": "vitpe.error/1", "kind": "size", "message": "no | such size"})
    children = Children({"good": (0, good), "bad": (2, bad), "dead": (-11, ""), "late": (0, good)})
    monkeypatch.setattr(jobs_run.subprocess, "Popen", children.Popen)
    jobs = [Job(name, (name,)) for name in ("good", "bad", "dead", "late")]

    def run(*, fresh: bool = False) -> list[jobs_run.Done]:
        children.ran.clear()
        runner = Runner("export", tmp_path, verbosity=-1, dry_run=False, fresh=fresh)
        return runner.run(jobs, Silent())

    assert [done.exit_code for done in run()] == [0, 2, 1, 0]
    assert children.ran == ["good", "bad", "dead", "late"]
    again = run()
    assert children.ran == ["bad", "dead"]
    assert [done.kept for done in again] == [True, False, False, True]
    table = markdown("export", again)
    assert "| bad | REFUSED: no \\| such size |" in table
    assert "signal 11" in table
    assert "4 jobs: 2 ok, 2 not, 2 kept" in table
    file.write_bytes(b"2")  # somebody else's now
    run()
    assert children.ran == ["good", "bad", "dead", "late"]
    file.write_bytes(b"1")
    run(fresh=True)
    assert children.ran == ["good", "bad", "dead", "late"]


def test_jobs_whose_input_changed_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, a folder of pictures with folders in it; what jobs write there does not count."""
    good = json.dumps({"schema": "vitpe.bench/1", "artifacts": [], "parity": []})
    children = Children({"one": (0, good), "two": (0, good)})
    monkeypatch.setattr(jobs_run.subprocess, "Popen", children.Popen)
    weights, pictures = tmp_path / "w.pt", tmp_path / "pictures"
    weights.write_bytes(b"1")
    (pictures / "cats").mkdir(parents=True)
    (pictures / "cats" / "a.png").write_bytes(b"1")
    jobs = [
        Job("one", ("one", "--weights", str(weights))),
        Job("two", ("two", "--images", str(pictures), "--output", str(pictures / "bench"))),
    ]
    said = Said()

    def run() -> list[str]:
        children.ran.clear()
        runner = Runner("bench", pictures, verbosity=-1, dry_run=False, fresh=False)
        runner.run(jobs, said)
        for name in ("jobs.json", "jobs.md", "bench/bench.json"):
            (pictures / name).parent.mkdir(exist_ok=True)
            (pictures / name).write_text("")
        return list(children.ran)

    assert run() == ["one", "two"]
    assert run() == []
    weights.write_bytes(b"2")  # as long as before
    assert run() == ["one"]
    assert f"job one: {weights} has changed since it was finished" in said.lines
    (pictures / "cats" / "b.png").write_bytes(b"")
    assert run() == ["two"]
    assert run() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("jobs.json", '{"schema": "mine"}'), ("jobs.json", "null"), ("jobs.md", "notes")],
)
def test_files_of_others_are_not_replaced_by_summaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nmodel = "no-such-source:x"\n', encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(text)
    assert export_main([str(jobs), "-o", str(out), "-q"]) == 2
    assert f"{out / name} exists already" in capsys.readouterr().err
    assert (out / name).read_text() == text
    assert [p.name for p in out.iterdir()] == [name]


def test_summaries_of_earlier_jobs_are_replaced(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nmodel = "no-such-source:x"\n', encoding="utf-8")
    first = export_main([str(jobs), "-o", str(tmp_path), "-q"])
    (tmp_path / "jobs.md").write_text("old")
    assert export_main([str(jobs), "-o", str(tmp_path), "-q"]) == first
    assert (tmp_path / "jobs.md").read_text() != "old"


def test_two_benchmarks_do_not_share_a_folder(tmp_path: Path) -> None:
    jobs = [Job(name, (name, "--output", "x")) for name in "ab"]
    runner = Runner("bench", tmp_path, verbosity=-1, dry_run=False, fresh=False)
    with pytest.raises(UsageError, match="job a and another one write their reports to x"):
        runner.run(jobs, Silent())


def test_job_without_a_report_is_a_row_of_the_page(tmp_path: Path) -> None:
    report = example(wrong=False).model_dump(by_alias=True, mode="json")
    error = {"schema": "vitpe.error/1", "kind": "size", "message": "no such size"}
    done = [
        jobs_run.Done(Job("good", ("a",)), 0, report, 1.0),
        jobs_run.Done(Job("bad", ("b",)), 2, error, 1.0),
    ]
    found = merged(done)
    assert found is not None
    assert [(row.id, row.message) for row in found.failed] == [("bad", "no such size")]
    assert found.results[0].id.startswith("good: ")
    assert merged(done[1:]) is None


class Said(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_example_of_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs file of docs/benchmarks.md, exported: one job is refused, the others are made."""
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(text, encoding="utf-8")
    code = export_main(["jobs.toml", "-o", "out", "-q", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == document["exit_code"] == 2
    assert [(job["name"], job["exit_code"]) for job in document["jobs"]] == [
        ("tiny-learned-1d", 0),
        ("tiny-rope-2d", 0),
        ("refused", 2),
    ]
    assert len(list(Path("out").glob("*.onnx"))) == 4
    assert "does not fit patch size" in document["jobs"][2]["error"]["message"]
    assert "3 jobs: 2 ok, 1 not, 0 kept" in Path("out/jobs.md").read_text(encoding="utf-8")
    code = export_main(["jobs.toml", "-o", "out", "-q", "--json"])
    again = json.loads(capsys.readouterr().out)
    assert [job["kept"] for job in again["jobs"]] == [True, True, False]
    Path("bench.toml").write_text('[[job]]\nname = "all"\nartifact = "out"\n', encoding="utf-8")
    assert bench_main(["bench.toml", "--dry-run", "--json", "-q"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["jobs"]
    rows = [row for group in planned["report"]["groups"] for row in group["rows"]]
    assert len(rows) == 8


def test_other_flags_do_not_stand_beside_a_jobs_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('[[job]]\nmodel = "vit_tiny_patch16_224"\n', encoding="utf-8")
    assert export_main([str(path), "--res", "64"]) == 2
    assert "--res stands beside a jobs file" in capsys.readouterr().err
    assert bench_main([str(path), "x.onnx"]) == 2
    assert "stands alone" in capsys.readouterr().err
