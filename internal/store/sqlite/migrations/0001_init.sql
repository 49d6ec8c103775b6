-- Times are microseconds since 1970 UTC. Lists and maps are JSON.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sandboxes (
  seq             INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again, so cursors hold
  id              TEXT NOT NULL UNIQUE,
  version         INTEGER NOT NULL,
  name            TEXT NOT NULL,
  status          TEXT NOT NULL,
  reason          TEXT NOT NULL,
  image           TEXT NOT NULL,
  image_id        TEXT NOT NULL,
  labels          TEXT NOT NULL,
  user            TEXT NOT NULL,
  env             TEXT NOT NULL,
  resources       TEXT NOT NULL,
  unenforced      TEXT NOT NULL,
  region          TEXT NOT NULL,
  arch            TEXT NOT NULL,
  runner_id       TEXT NOT NULL,
  runner_epoch    INTEGER NOT NULL,
  machine_id      TEXT NOT NULL,
  idempotency_key TEXT,
  args_digest     TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  started_at      INTEGER,
  create_deadline INTEGER NOT NULL,
  deleted_at      INTEGER
) STRICT;

CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX sandboxes_live_key ON sandboxes (idempotency_key) WHERE deleted_at IS NULL;
CREATE INDEX sandboxes_name ON sandboxes (name, seq);
CREATE INDEX sandboxes_live ON sandboxes (seq) WHERE deleted_at IS NULL;
CREATE INDEX sandboxes_status ON sandboxes (status, seq);
CREATE INDEX sandboxes_live_runner ON sandboxes (runner_id) WHERE deleted_at IS NULL;
CREATE INDEX sandboxes_live_image ON sandboxes (image_id) WHERE deleted_at IS NULL;
CREATE INDEX sandboxes_deadline ON sandboxes (status, create_deadline);
CREATE INDEX sandboxes_deleted ON sandboxes (deleted_at) WHERE deleted_at IS NOT NULL;

-- The labels once more, to find sandboxes by them.
CREATE TABLE sandbox_labels (
  key   TEXT NOT NULL,
  value TEXT NOT NULL,
  seq   INTEGER NOT NULL REFERENCES sandboxes (seq) ON DELETE CASCADE,
  PRIMARY KEY (key, value, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_labels_seq ON sandbox_labels (seq);

CREATE TABLE images (
  seq         INTEGER PRIMARY KEY AUTOINCREMENT,
  id          TEXT NOT NULL UNIQUE,
  version     INTEGER NOT NULL,
  name        TEXT NOT NULL UNIQUE,
  status      TEXT NOT NULL,
  error       TEXT NOT NULL,
  source      TEXT NOT NULL,
  digest      TEXT NOT NULL,
  platform    TEXT NOT NULL,
  is_default  INTEGER NOT NULL,
  bytes       INTEGER NOT NULL,
  layer_count INTEGER NOT NULL,
  config      TEXT NOT NULL,
  progress    TEXT NOT NULL,
  runner_id   TEXT NOT NULL,
  command     BLOB,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX images_default ON images (is_default) WHERE is_default = 1;

CREATE TABLE outbox (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  sandbox_id TEXT NOT NULL,
  runner_id  TEXT NOT NULL,
  payload    BLOB
) STRICT;

CREATE TABLE runners (
  id     TEXT PRIMARY KEY,
  region TEXT NOT NULL,
  epoch  INTEGER NOT NULL,
  gone   INTEGER NOT NULL,
  report TEXT NOT NULL -- skerry.Runner
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  hash       BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
