"""The tables of the run store, as a list of migrations.

To extend: append a tuple of statements to MIGRATIONS and never edit one that has been released. A store's
version is the number of migrations it has been through (SQLite's `user_version`).

    jobs ──< job_files                  content of a job directory, by hash
      └──< runs ──< inner_steps         one execution of a job under one seed
             ├──< rollouts              a few completions kept for inspection
             ├──< findings              what the probe and the integrity checks said
             ├──< run_evals >── evals ──< eval_items
             ├──< rewards               one for each submission number it was asked for
             └──< cache_hits            requests that this run answered
    baselines >── evals                 untrained bases, measured once
    events                              what happened, in order
    queue ──< queue_attempts            work for the fleet, and how each try at it ended
    pods                                machines rented for it, from the intent to the end of their bill
"""

from __future__ import annotations

APPLICATION_ID = 0x41544131
"""Marks the file as ours, so that another program's database is refused rather than filled with tables."""

_FIRST = (
    """CREATE TABLE jobs (
        sha256 TEXT PRIMARY KEY,
        family TEXT,
        base_model TEXT NOT NULL,
        environment_args TEXT NOT NULL,
        prime_rl TEXT NOT NULL,
        explicit_keys TEXT NOT NULL,
        created REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE job_files (
        job_sha256 TEXT NOT NULL REFERENCES jobs(sha256),
        path TEXT NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (job_sha256, path)
    ) STRICT""",
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        job_sha256 TEXT NOT NULL,
        family TEXT NOT NULL,
        base_model TEXT NOT NULL,
        seed INTEGER NOT NULL,
        cache_key TEXT,
        state TEXT NOT NULL CHECK (state IN
            ('running', 'completed', 'rejected', 'failed', 'missing', 'interrupted', 'abandoned')),
        attempts INTEGER NOT NULL DEFAULT 0,
        started REAL NOT NULL,
        finished REAL,
        seconds REAL,
        estimated_tokens INTEGER,
        probe_seconds REAL,
        checkpoint TEXT,
        weights_sha256 TEXT,
        training_tokens INTEGER,
        training_seconds REAL,
        early_stop TEXT,
        uplift_low REAL,
        uplift_high REAL,
        trusted INTEGER NOT NULL DEFAULT 1,
        error TEXT
    ) STRICT""",
    "CREATE INDEX runs_by_cache_key ON runs(cache_key) WHERE cache_key IS NOT NULL",
    "CREATE INDEX runs_by_state ON runs(state)",
    """CREATE TABLE findings (
        run_id TEXT NOT NULL REFERENCES runs(id),
        position INTEGER NOT NULL,
        stage TEXT NOT NULL CHECK (stage IN ('probe', 'failure', 'warning')),
        severity TEXT NOT NULL CHECK (severity IN ('error', 'warning')),
        name TEXT NOT NULL,
        message TEXT NOT NULL,
        fix TEXT NOT NULL,
        PRIMARY KEY (run_id, stage, position)
    ) STRICT""",
    """CREATE TABLE inner_steps (
        run_id TEXT NOT NULL REFERENCES runs(id),
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        inner_reward REAL NOT NULL,
        metrics TEXT NOT NULL,
        PRIMARY KEY (run_id, attempt, step)
    ) STRICT""",
    """CREATE TABLE rollouts (
        run_id TEXT NOT NULL REFERENCES runs(id),
        position INTEGER NOT NULL,
        task_index INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        completion TEXT NOT NULL,
        inner_reward REAL NOT NULL,
        PRIMARY KEY (run_id, position)
    ) STRICT""",
    """CREATE TABLE evals (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        family TEXT NOT NULL,
        model TEXT NOT NULL,
        accuracy REAL NOT NULL,
        low REAL NOT NULL,
        high REAL NOT NULL,
        pass_k REAL NOT NULL,
        samples_per_item INTEGER NOT NULL,
        seconds REAL NOT NULL,
        created REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE eval_items (
        eval_id INTEGER NOT NULL REFERENCES evals(id),
        position INTEGER NOT NULL,
        score REAL NOT NULL,
        PRIMARY KEY (eval_id, position)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE run_evals (
        run_id TEXT NOT NULL REFERENCES runs(id),
        role TEXT NOT NULL CHECK (role IN ('pre', 'best_pre', 'post')),
        eval_id INTEGER NOT NULL REFERENCES evals(id),
        PRIMARY KEY (run_id, role)
    ) STRICT""",
    """CREATE TABLE baselines (
        eval_key TEXT NOT NULL,
        base TEXT NOT NULL,
        base_sha256 TEXT NOT NULL,
        family TEXT NOT NULL,
        secret_id TEXT NOT NULL,
        eval_config TEXT NOT NULL,
        eval_id INTEGER NOT NULL REFERENCES evals(id),
        PRIMARY KEY (eval_key)
    ) STRICT""",
    """CREATE TABLE rewards (
        run_id TEXT NOT NULL REFERENCES runs(id),
        submission INTEGER NOT NULL,
        total REAL NOT NULL,
        validation REAL NOT NULL,
        quality REAL NOT NULL,
        speed REAL NOT NULL,
        uplift REAL NOT NULL,
        config TEXT NOT NULL,
        PRIMARY KEY (run_id, submission)
    ) STRICT""",
    """CREATE TABLE cache_hits (
        id INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL REFERENCES runs(id),
        cache_key TEXT NOT NULL,
        submission INTEGER NOT NULL,
        at REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        run_id TEXT,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX events_by_run ON events(run_id)",
)

_QUEUE = (
    """CREATE TABLE queue (
        id TEXT PRIMARY KEY,
        payload TEXT NOT NULL,
        state TEXT NOT NULL CHECK (
            state IN ('queued', 'leased', 'running', 'done', 'failed', 'poisoned')
        ),
        position INTEGER NOT NULL,
        token INTEGER NOT NULL DEFAULT 0,
        worker TEXT,
        expires REAL,
        not_before REAL NOT NULL,
        failures INTEGER NOT NULL DEFAULT 0,
        losses INTEGER NOT NULL DEFAULT 0,
        result TEXT,
        error TEXT,
        created REAL NOT NULL,
        ended REAL,
        CHECK ((worker IS NOT NULL) = (state IN ('leased', 'running'))),
        CHECK ((expires IS NOT NULL) = (state IN ('leased', 'running'))),
        CHECK ((result IS NOT NULL) = (state = 'done')),
        CHECK ((ended IS NOT NULL) = (state IN ('done', 'failed', 'poisoned')))
    ) STRICT""",
    "CREATE INDEX queue_by_state ON queue(state, position)",
    """CREATE TABLE queue_attempts (
        job_id TEXT NOT NULL REFERENCES queue(id),
        token INTEGER NOT NULL,
        worker TEXT NOT NULL,
        leased REAL NOT NULL,
        started REAL,
        ended REAL,
        outcome TEXT CHECK (outcome IN ('done', 'failed', 'retry', 'lost', 'released')),
        error TEXT,
        PRIMARY KEY (job_id, token)
    ) STRICT, WITHOUT ROWID""",
)

_PODS = (
    """CREATE TABLE pods (
        name TEXT PRIMARY KEY,
        pod_id TEXT,
        state TEXT NOT NULL CHECK (state IN ('intended', 'booting', 'ready', 'busy', 'ending', 'gone')),
        gpu TEXT NOT NULL,
        cloud TEXT NOT NULL,
        dollars REAL NOT NULL,
        created REAL NOT NULL,
        touched REAL NOT NULL,
        idle_since REAL,
        ended REAL,
        reason TEXT,
        CHECK ((ended IS NOT NULL) = (state = 'gone')),
        CHECK ((reason IS NOT NULL) = (state IN ('ending', 'gone'))),
        CHECK (pod_id IS NOT NULL OR state IN ('intended', 'gone'))
    ) STRICT""",
    "CREATE INDEX pods_by_state ON pods(state)",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _QUEUE, _PODS)
