"""Run by an interpreter that has lm_eval: evaluates models on the tasks beside this file.

    python lm_eval_run.py '[{"model": "hf", "model_args": {...}, "tasks": [...]}]'

Writes as the last line of its output, for each of these runs, the results and every single answer by task.
"""

import json
import os
import sys
from pathlib import Path

TASKS = Path(__file__).with_name("lm_eval_tasks")


def main(runs: list[dict]) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    os.chdir(TASKS)  # the tasks name their files from here
    tasks = TaskManager(include_path=str(TASKS), include_defaults=False)
    reports = [simple_evaluate(**run, task_manager=tasks, bootstrap_iters=0, verbosity="WARNING") for run in runs]
    print(json.dumps([told(report) for report in reports], default=float))


def told(report: dict) -> dict:
    """Metrics by task without their names' filters, and what the model answered to each document."""
    metrics = {
        task: {name.split(",")[0]: value for name, value in values.items() if "," in name and "stderr" not in name}
        for task, values in report["results"].items()
    }
    answers = {
        task: [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for task, samples in report["samples"].items()
    }
    return {"metrics": metrics, "answers": answers}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
