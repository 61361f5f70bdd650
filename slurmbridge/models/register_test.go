package models

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// registerAt opens the register of a database.
func registerAt(t testing.TB, path string) (*Register, func()) {
	t.Helper()
	db, err := database.Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return NewRegister(db), func() { db.Close() }
}

var (
	better = &Verdict{Better: true, Gain: 0.1, Bound: 0.05}
	same   = &Verdict{Gain: 0.001, Bound: -0.05}
)

func sum(c string) string { return strings.Repeat(c, 64) }

// A model's life: promoted by a round, held against the next, pinned, taken back.
func TestModels(t *testing.T) {
	path := t.TempDir() + "/db"
	m, closeDB := registerAt(t, path)
	ctx := t.Context()
	use := func(want int64, pinned bool) {
		t.Helper()
		if u, err := m.Use(ctx); err != nil || u.Model != want || u.Pinned != pinned {
			t.Fatalf("%+v, %v; want model %d, pinned %v", u, err, want, pinned)
		}
	}
	round := func(base int64, f *Finding, want State) *Model {
		t.Helper()
		file := sum("a")
		if f.Verdict == nil {
			file = ""
		}
		got, err := m.Conclude(ctx, base, base, f, file, sum("b"))
		if err != nil || got.State != want || len(got.History) != 1 || got.History[0].To != want || got.History[0].Why == "" {
			t.Fatalf("%+v, %v; want %s", got, err, want)
		}
		return got
	}
	use(0, false)
	if err := m.Rollback(ctx, "test"); !errors.Is(err, ErrNoModel) {
		t.Errorf("rolled back what is built in: %v", err)
	}
	if one := round(0, &Finding{Verdict: same}, Rejected); one.ID != 1 {
		t.Errorf("the first is number %d", one.ID)
	}
	use(0, false)
	round(0, &Finding{}, Rejected)
	if three := round(0, &Finding{Verdict: better}, Promoted); three.Former != 0 || three.Base != 0 {
		t.Errorf("%+v", three)
	}
	use(3, false)
	round(3, &Finding{Former: same, Verdict: better}, Promoted)
	use(4, false)
	// The one in use has changed since the round began.
	round(3, &Finding{Verdict: better}, Candidate)
	use(4, false)
	// The former is better after all, and the candidate better than that.
	six := round(4, &Finding{Former: better, Verdict: better}, Promoted)
	if six.Base != 3 || six.Former != 3 {
		t.Errorf("it began with %d and would fall back on %d, not 3", six.Base, six.Former)
	}
	use(6, false)
	if four, err := m.Get(ctx, 4); err != nil || four.State != RolledBack || len(four.History) != 2 {
		t.Errorf("%+v, %v", four, err)
	}
	// Pinned: rounds say what they think, and no more.
	if err := m.Promote(ctx, 4, "chosen"); err != nil {
		t.Fatal(err)
	}
	use(4, true)
	seven := round(4, &Finding{Former: better, Verdict: better}, Candidate)
	if seven.Base != 6 || !strings.Contains(seven.History[0].Why, "pinned") {
		t.Errorf("%+v", seven)
	}
	use(4, true)
	if err := m.Auto(ctx); err != nil {
		t.Fatal(err)
	}
	use(4, false)
	// What is kept outlives the process.
	closeDB()
	m, closeDB = registerAt(t, path)
	defer closeDB()
	use(4, false)
	line, err := m.Line(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for i := range line {
		ids = append(ids, line[i].ID)
	}
	if !slices.Equal(ids, []int64{4, 6, 3}) {
		t.Errorf("fall back in the order %v", ids)
	}
	// One further down the line keeps its own former: nothing goes round in circles.
	if err := m.Promote(ctx, 3, "chosen"); err != nil {
		t.Fatal(err)
	}
	if line, err = m.Line(ctx); err != nil || len(line) != 1 || line[0].ID != 3 {
		t.Errorf("%+v, %v", line, err)
	}
	if err := m.Rollback(ctx, "taken back"); err != nil {
		t.Fatal(err)
	}
	use(0, false)
	// What there isn't, and what kept no file.
	if err := m.Promote(ctx, 99, "chosen"); !errors.Is(err, ErrNoModel) {
		t.Error(err)
	}
	if err := m.Promote(ctx, 2, "chosen"); !errors.Is(err, ErrUnusable) {
		t.Error(err)
	}
	use(0, false)
}

// Whatever rounds and admins do, in whatever order: one model decides that there is,
// falling back ends at the one built in, rounds touch nothing that is pinned, and files
// that are needed are kept.
func TestModelsHistories(t *testing.T) {
	n := 0
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n++
		m, closeDB := registerAt(t, fmt.Sprintf("%s/%d", dir, n))
		defer closeDB()
		ctx := t.Context()
		now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		m.now = func() time.Time { return now }
		verdicts := []*Verdict{nil, same, better}
		made := int64(0)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			now = now.Add(24 * time.Hour)
			before, err := m.Use(ctx)
			if err != nil {
				rt.Fatal(err)
			}
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				err = m.Promote(ctx, rapid.Int64Range(0, made+1).Draw(rt, "id"), "chosen")
				if errors.Is(err, ErrNoModel) || errors.Is(err, ErrUnusable) {
					err = nil
				}
			case 1:
				if err = m.Rollback(ctx, "taken back"); before.Model == 0 && errors.Is(err, ErrNoModel) {
					err = nil
				}
			case 2:
				err = m.Auto(ctx)
			case 3:
				var keep map[string]bool
				if keep, err = m.Keep(ctx, now.Add(-10*24*time.Hour)); err == nil {
					line, _ := m.Line(ctx)
					for i := range line {
						if !keep[line[i].SHA256] || !keep[line[i].Mix] {
							rt.Fatalf("model %d is in the line, and its files go", line[i].ID)
						}
					}
				}
			default:
				f := &Finding{Verdict: rapid.SampledFrom(verdicts).Draw(rt, "verdict")}
				base := before.Model
				if rapid.IntRange(0, 4).Draw(rt, "late") == 0 {
					base = rapid.Int64Range(0, made).Draw(rt, "base")
				}
				if base != 0 {
					if _, gone := m.Get(ctx, base); gone != nil {
						continue
					}
					f.Former = rapid.SampledFrom(verdicts).Draw(rt, "former")
				}
				file := ""
				if f.Verdict != nil {
					file = sum("a")
				}
				var one *Model
				if one, err = m.Conclude(ctx, base, base, f, file, sum("b")); err == nil {
					made = one.ID
					after, _ := m.Use(ctx)
					if (before.Pinned || before.Model != base) && after != before {
						rt.Fatalf("a round turned %+v into %+v", before, after)
					}
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
			u, err := m.Use(ctx)
			if err != nil {
				rt.Fatal(err)
			}
			if u.Model != 0 {
				if one, err := m.Get(ctx, u.Model); err != nil || one.State != Promoted || one.SHA256 == "" {
					rt.Fatalf("%+v decides: %+v, %v", u, one, err)
				}
			}
			if line, err := m.Line(ctx); err != nil || u.Model != 0 && (len(line) == 0 || line[len(line)-1].Former != 0) {
				rt.Fatalf("falling back from %d doesn't end: %d, %v", u.Model, len(line), err)
			}
		}
	})
}
