"""Attacks on several clients' uploads at a time, as Ray tasks; the bits are those of one process."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import ray

from actors.cluster import connect
from rayfed_ssl.analysis.audit import Attacked, Job, attack_clients
from rayfed_ssl.foreign import plugins


def in_tasks(workers: int) -> Callable[[list[Job]], Iterator[Attacked]]:
    """Make what does an audit's jobs in so many Ray tasks at a time; a task whose process dies runs again."""

    def work(jobs: list[Job]) -> Iterator[Attacked]:
        if not jobs:
            return
        cluster = connect.start(num_cpus=workers, num_workers=workers)
        try:
            task: Any = ray.remote(num_cpus=1)(_attack)
            left, running = list(jobs), list[Any]()
            while left or running:
                while left and len(running) < workers:
                    running.append(task.remote(os.getcwd(), left.pop(0)))
                done, running = ray.wait(running)
                yield from ray.get(done)
        finally:
            cluster.stop()

    return work


def _attack(working_directory: str, job: Job) -> Attacked:
    plugins.import_from(working_directory)
    (attacked,) = attack_clients([job])
    return attacked
