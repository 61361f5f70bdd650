package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func opened(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func record(job int64, user string, seconds float64, neighbours ...int64) *gpuprof.Record {
	r := &gpuprof.Record{
		JobID: job, Node: "n1", User: user, Start: time.Unix(1000, 0), End: time.Unix(1000, int64(seconds*1e9)),
		GPUs: []gpuprof.GPU{{UUID: "GPU-1"}}, PeriodS: seconds, Series: []rlcore.Use{{GPU: 0.4, MemMiB: 2000}},
	}
	for _, n := range neighbours {
		r.Neighbours = append(r.Neighbours, gpuprof.Neighbour{JobID: n})
	}
	return r
}

func TestRecordsBecomeProfiles(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "s.db")
	s := opened(t, path)
	if _, err := s.Lookup(ctx, "ann", "lmp", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nothing: %v", err)
	}
	// A shared run is kept, but teaches no solo profile.
	if a, err := s.AddRecord(ctx, record(1, "ann", 100, 2), "lmp"); err != nil || !a.New {
		t.Errorf("%+v %v", a, err)
	}
	if a, err := s.AddRecord(ctx, record(3, "ann", 50), "lmp"); err != nil || !a.New {
		t.Errorf("%+v %v", a, err)
	}
	runs, err := s.After(ctx, 0, 10)
	if err != nil || len(runs) != 2 || runs[0].Record.JobID != 1 || runs[1].App != "lmp" {
		t.Fatalf("%+v %v", runs, err)
	}
	for i, want := range []bool{false, true} {
		if ok, err := s.Learn(ctx, runs[i].App, &runs[i].Record); err != nil || ok != want {
			t.Errorf("run %d: learned %v, %v", i, ok, err)
		}
	}
	if left, err := s.After(ctx, runs[0].ID, 10); err != nil || len(left) != 1 || left[0].ID != runs[1].ID {
		t.Errorf("after the first: %+v %v", left, err)
	}
	if a, err := s.AddRecord(ctx, record(3, "ann", 50), "lmp"); err != nil || a.New {
		t.Errorf("the same record twice: %+v %v", a, err)
	}
	if a, err := s.AddRecord(ctx, record(4, "ann", 75, 5), "lmp"); err != nil || a.Slowdown != 1.5 {
		t.Errorf("%+v %v, want slowdown 1.5", a, err)
	}
	p, err := s.Lookup(ctx, "ann", "lmp", "")
	if err != nil || p.Runs != 1 || p.DurationS != 50 {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := s.Lookup(ctx, "bob", "lmp", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("bob's job is held to be what ann's was: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestImport(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	file := filepath.Join(t.TempDir(), "p.csv")
	if err := os.WriteFile(file, []byte("app,duration_s,gpu_util,mem_mib,step_ms\nlmp,264,22,7783,\nvgg16,80,99,4316,412\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ps, err := ReadProfiles(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Import(ctx, ps); err != nil {
		t.Fatal(err)
	}
	p, err := s.Lookup(ctx, "bob", "vgg16", "")
	if err != nil || p.StepS != 0.412 || p.Peak().MemMiB != 4316 {
		t.Errorf("%+v %v", p, err)
	}
	// A user's own run counts more than what was imported.
	if ok, err := s.Learn(ctx, "vgg16", record(3, "bob", 50)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if p, err := s.Lookup(ctx, "bob", "vgg16", ""); err != nil || p.DurationS != 50 {
		t.Errorf("%+v %v", p, err)
	}
	if n, err := s.Forget(ctx, "*", "vgg16"); err != nil || n != 2 {
		t.Errorf("forgot %d, %v", n, err)
	}
	if l, err := s.List(ctx); err != nil || len(l) != 1 || l[0].Profile.App != "lmp" {
		t.Errorf("%+v %v", l, err)
	}
}

func TestBadFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "f: the file is empty",
		"app,duration_s\nx,1\n": "f:1: gpu_util: the header lacks",
		"app,duration_s,gpu_util,mem_mib\nx,zero,5,7\n":       "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,NaN,5,7\n":        "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,0,5,7\n":          "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,1,500,7\n":        "f:2: gpu_util: ",
		"app,duration_s,gpu_util,mem_mib\n,1,5,7\n":           "f:2: app: ",
		"app,duration_s,gpu_util,mem_mib\nx,1,5,7\nx,1,5,7\n": "f:3: app: ",
		"app,duration_s,gpu_util,mem_mib\n":                   "f: there is no row",
		"app,duration_s,gpu_util\nx,1,5\n":                    "f:1: mem_mib: the header lacks",
		"app,duration_s,gpu_util,mem_mib\nx,1,5,\n":           "f:2: mem_mib: ",
	} {
		if _, err := ParseCSV(strings.NewReader(text), "f"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "{}", "[]", "[null]", `[{"app":"x"}]`, `[{"app":"x","duration_s":1,"period_s":1,"series":[{"gpu":2}]}]`, `[{"unknown":1}]`} {
		if _, err := ParseJSON(strings.NewReader(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func FuzzParseCSV(f *testing.F) {
	f.Add("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\nx,1,2,3,4,5,6,7\n")
	f.Fuzz(func(t *testing.T, text string) {
		ps, err := ParseCSV(strings.NewReader(text), "f")
		if err != nil {
			return
		}
		for _, p := range ps {
			if err := p.Validate(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Slurm gives numbers of jobs out again, perhaps to another user.
func TestNumbersOfJobsComeAgain(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	if err := s.SetApp(ctx, "7", "ann", "lmp"); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{"ann": "lmp", "bob": "", "": ""} {
		if app, err := s.AppOf(ctx, "7", user); err != nil || app != want {
			t.Errorf("job 7 of %q runs %q, %v", user, app, err)
		}
	}
	if err := s.SetApp(ctx, "7", "bob", ""); err != nil {
		t.Fatal(err)
	}
	if app, err := s.AppOf(ctx, "7", "ann"); err != nil || app != "" {
		t.Errorf("ann's job 7 of before runs %q, %v", app, err)
	}
	if owner, err := s.OwnerOf(ctx, "7"); err != nil || owner != "bob" {
		t.Errorf("job 7 is %q's, %v", owner, err)
	}
}

// Numbers of runs are not given out again, whatever was removed: outcomes name them.
func TestTidyKeepsTheHighestNumber(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	add := func(job int64) (id int64) {
		t.Helper()
		if _, err := s.AddRecord(ctx, record(job, "ann", 10), "lmp"); err != nil {
			t.Fatal(err)
		}
		if err := s.db.QueryRowContext(ctx, `SELECT max(id) FROM runs`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first, second := add(1), add(2)
	if err := s.Tidy(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM runs`).Scan(&left); err != nil || left != 1 {
		t.Errorf("%d runs are left, %v", left, err)
	}
	if third := add(3); third <= second || second <= first {
		t.Errorf("runs %d, %d, and after tidying %d", first, second, third)
	}
}
