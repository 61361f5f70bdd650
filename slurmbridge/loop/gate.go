package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/google/renameio/v2"
)

// Gate keeps the one job that waiting jobs depend on. They wait while it is renewed;
// without renewal it ends by itself within one lease, and they are ordinary jobs.
type Gate struct {
	Slurm job.Slurm
	Lease time.Duration
	// File names the gate to the job_submit script, and until when it is closed; "" = no
	// file is kept (shadow, or no script).
	File    string
	Sharing job.Sharing
	Now     func() time.Time

	id      string
	expires time.Time
	// submitted is when the gate was created: an earlier poll can't show it.
	submitted time.Time
}

// ID is the gate's job, "" while there is none.
func (g *Gate) ID() string { return g.id }

// Left is how long the gate stays closed without another renewal.
func (g *Gate) Left() time.Duration {
	if g.id == "" {
		return 0
	}
	return g.expires.Sub(g.Now())
}

// Keep makes sure that there is a gate and that its lease is fresh: it takes over the one
// that a poll found (after a restart), renews it when a third of the lease has passed, and
// creates a new one when it is lost. After an error newly submitted jobs get no gate: the
// file isn't renewed.
func (g *Gate) Keep(ctx context.Context, s *job.Snapshot) error {
	live := false
	newest := ""
	for _, seen := range s.Gates {
		if seen.Open {
			continue
		}
		live = live || seen.ID == g.id
		if len(seen.ID) > len(newest) || len(seen.ID) == len(newest) && seen.ID > newest {
			newest = seen.ID
		}
	}
	if g.id != "" && !live && !g.submitted.After(s.At) {
		g.id = "" // lost: cancelled, opened, or its lease ended
	}
	if g.id == "" && newest != "" {
		g.id, g.expires = newest, time.Time{} // renew it at once
	}
	var err error
	switch {
	case g.id == "":
		err = g.create(ctx)
	case g.expires.Sub(g.Now()) < g.Lease*2/3:
		err = g.renew(ctx)
	}
	if err != nil {
		return err
	}
	return g.write()
}

func (g *Gate) create(ctx context.Context) error {
	id, err := g.Slurm.CreateGate(ctx, g.Lease)
	if err != nil {
		return fmt.Errorf("create gate: %w", err)
	}
	g.id, g.expires, g.submitted = id, g.Now().Add(g.Lease), g.Now()
	return nil
}

func (g *Gate) renew(ctx context.Context) error {
	err := g.Slurm.RenewGate(ctx, g.id, g.Lease)
	if errors.Is(err, job.ErrNoJob) {
		g.id = ""
		return g.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("renew gate %s: %w", g.id, err)
	}
	g.expires = g.Now().Add(g.Lease)
	return nil
}

// write publishes the gate to the job_submit script. The expiry in the file is a little
// before the lease's, so that no job is bound to a gate that is opening.
func (g *Gate) write() error {
	if g.File == "" {
		return nil
	}
	text := fmt.Sprintf("job=%s\nexpires=%d\ngres=%s\nunits=%d\n", g.id, g.expires.Add(-2*time.Second).Unix(), g.Sharing, job.Units)
	if err := renameio.WriteFile(g.File, []byte(text), 0o644, renameio.WithTempDir(filepath.Dir(g.File))); err != nil {
		return fmt.Errorf("write gate file: %w", err)
	}
	return nil
}

// RemoveGateFile removes a gate file, if there is one.
func RemoveGateFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(filepath.Clean(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove gate file: %w", err)
	}
	return nil
}
