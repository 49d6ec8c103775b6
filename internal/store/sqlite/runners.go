package sqlite

import (
	"context"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func scanRunner(row rowScanner) (r store.Runner, err error) {
	err = row.Scan(&r.Region, &r.Epoch, &r.Gone, jsonColumn{&r.Runner})
	return r, err
}

func (t *txn) Runner(ctx context.Context, id skerry.RunnerID) (store.Runner, error) {
	r, err := scanRunner(t.tx.QueryRowContext(ctx, "SELECT region, epoch, gone, report FROM runners WHERE id = ?", id))
	return r, one("runner", err)
}

func (t *txn) Runners(ctx context.Context) ([]store.Runner, error) {
	found := []store.Runner{}
	err := t.query(ctx, "runners", func(row rowScanner) error {
		r, err := scanRunner(row)
		found = append(found, r)
		return err
	}, "SELECT region, epoch, gone, report FROM runners ORDER BY id")
	return found, err
}

func (t *txn) PutRunner(ctx context.Context, r store.Runner) error {
	_, err := t.exec(ctx, "put runner", `INSERT INTO runners (id, region, epoch, gone, report) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET region = excluded.region, epoch = excluded.epoch, gone = excluded.gone, report = excluded.report`,
		r.ID, r.Region, r.Epoch, r.Gone, text(r.Runner))
	return err
}
