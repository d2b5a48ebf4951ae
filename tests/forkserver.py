"""The fork server of all tests: its children need not import anything slow.

A test process has one, with one list of what it imports; a second list would take the place of this one.
"""

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("trainwright.app", "trainwright.cli.main", "trainwright.cli.progress", "tests.toys"),
        *("trainwright.registry.sql", "trainwright.registry.revisions", "psycopg"),
    ]
)
