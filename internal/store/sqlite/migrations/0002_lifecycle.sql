-- Persistent sandboxes, operations, timers, memory snapshots, events.

ALTER TABLE sandboxes ADD COLUMN persistent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN spot INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN operation TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN operation_target TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN policy TEXT NOT NULL DEFAULT '{}'; -- skerry.LifecyclePolicy
ALTER TABLE sandboxes ADD COLUMN timeout_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN idle_timeout_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN last_activity_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN spot_evicted_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN reclaim_due INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN idle_asked_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN retry_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN due_at INTEGER;

CREATE INDEX sandboxes_due ON sandboxes (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sandboxes_forked_from ON sandboxes (forked_from, status) WHERE forked_from <> '';
CREATE INDEX sandboxes_snapshot ON sandboxes (snapshot_id, status) WHERE snapshot_id <> '';

ALTER TABLE images ADD COLUMN anonymous INTEGER NOT NULL DEFAULT 0;
ALTER TABLE images ADD COLUMN idle_expiry_seconds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE images ADD COLUMN expires_at INTEGER;
ALTER TABLE images ADD COLUMN source_sandbox_id TEXT NOT NULL DEFAULT '';
ALTER TABLE images ADD COLUMN push TEXT NOT NULL DEFAULT 'null'; -- *skerry.PushProgress
ALTER TABLE images ADD COLUMN push_command BLOB;

CREATE INDEX images_expiry ON images (expires_at) WHERE expires_at IS NOT NULL;

-- The one name space of images and snapshots.
CREATE TABLE names (
  name      TEXT PRIMARY KEY,
  object_id TEXT NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;
INSERT INTO names (name, object_id) SELECT name, id FROM images;

CREATE TABLE snapshots (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,
  id           TEXT NOT NULL UNIQUE,
  version      INTEGER NOT NULL,
  name         TEXT NOT NULL UNIQUE,
  status       TEXT NOT NULL,
  error        TEXT NOT NULL,
  source_id    TEXT NOT NULL,
  image        TEXT NOT NULL,
  image_id     TEXT NOT NULL,
  user         TEXT NOT NULL,
  resources    TEXT NOT NULL,
  persistent   INTEGER NOT NULL,
  runner_id    TEXT NOT NULL,
  arch         TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL,
  disk_bytes   INTEGER NOT NULL,
  pause_millis INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_image ON snapshots (image_id);

CREATE TABLE events (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  type      TEXT NOT NULL,
  time      INTEGER NOT NULL,
  object_id TEXT NOT NULL,
  status    TEXT NOT NULL,
  object    TEXT NOT NULL
) STRICT;
CREATE INDEX events_object ON events (object_id, id);
CREATE INDEX events_time ON events (time);
