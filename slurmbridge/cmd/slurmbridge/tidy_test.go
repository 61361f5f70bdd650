package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// A database that is too large loses its oldest part, and never the last day.
func TestDatabaseIsBounded(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, filepath.Join(t.TempDir(), "s.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	j := journal.New(st.DB())
	w := &wired{store: st, journal: j}
	now := time.Now()
	for day := range 120 {
		g := &job.Group{ID: int64(day + 1), State: job.Done, Decided: now.Add(-time.Duration(119-day) * 24 * time.Hour)}
		for k := range 4 {
			g.Members = append(g.Members, job.Member{Ref: fmt.Sprint(day, "_", k), App: strings.Repeat("x", 8000)})
		}
		if err := j.SaveGroup(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
	full, err := database.Size(ctx, st.DB())
	if err != nil {
		t.Fatal(err)
	}
	days := func() int {
		groups, err := j.Groups(ctx, time.Time{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(groups)
	}
	if kept, err := w.tidyOnce(ctx, now, full); err != nil || kept != history.KeptFor || days() != 91 {
		t.Errorf("with room for all %v are kept, %d groups, %v", kept, days(), err)
	}
	kept, err := w.tidyOnce(ctx, now, full/4)
	if size, _ := database.Size(ctx, st.DB()); err != nil || size > full/4 || kept >= history.KeptFor || days() < 10 || days() > 40 {
		t.Errorf("with room for a quarter %v are kept, %d groups in %d of %d bytes, %v", kept, days(), size, full, err)
	}
	if kept, err := w.tidyOnce(ctx, now, 1); err != nil || kept != leastKept || days() != 2 {
		t.Errorf("without room %v are kept, %d groups, %v", kept, days(), err)
	}
}
