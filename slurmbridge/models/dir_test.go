package models

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// folder is one in which a round may work, with its lock held.
func folder(t *testing.T) Dir {
	t.Helper()
	d := Dir(filepath.Join(t.TempDir(), "models"))
	lock := must.Get(d.Lock())(t)
	t.Cleanup(func() { lock.Close() })
	return d
}

// decides returns which of the networks is the current one and which the previous one, by index;
// -1 = the built-in one.
func decides(t *testing.T, d Dir, networks ...*dqn.Checkpoint) (current, previous int) {
	t.Helper()
	at := func(c *dqn.Checkpoint, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		if c == nil {
			return -1
		}
		for i, n := range networks {
			if bytes.Equal(text(t, n), text(t, c)) {
				return i
			}
		}
		t.Fatal("the folder holds a network that nobody put there")
		return 0
	}
	return at(Load(d.Current(), policy.Turnaround)), at(Load(d.Previous(), policy.Turnaround))
}

// What each finding makes of the files.
func TestFindingsChangeFiles(t *testing.T) {
	d := folder(t)
	a, b := builtIn(t), spoil(t, builtIn(t))
	better, worse := &Verdict{Better: true, Gain: 0.1}, &Verdict{Gain: -0.1}
	for i, c := range []struct {
		found             Result
		change            Change
		current, previous int
	}{
		{Result{}, Kept, -1, -1},
		{Result{network: b, Candidate: worse}, Kept, -1, -1},
		{Result{network: a, Candidate: better}, Replaced, 0, -1},
		{Result{Previous: worse, network: b, Candidate: better}, Replaced, 1, 0},
		{Result{Previous: better}, Returned, 0, -1},
		{Result{Previous: worse, network: b, Candidate: better}, Replaced, 1, 0},
		{Result{Previous: better, network: b, Candidate: better}, Replaced, 1, 0}, // trained from the one that returned
		{Result{Previous: better, network: b, Candidate: worse}, Returned, 0, -1},
		{Result{Previous: better}, Returned, -1, -1}, // the built-in one was better
	} {
		stamp := d.Stamp()
		r := &c.found
		r.decide()
		if err := r.Apply(d, day0); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		current, previous := decides(t, d, a, b)
		if r.Change != c.change || current != c.current || previous != c.previous {
			t.Errorf("%d: %s, %d decides and %d before; want %s, %d, %d", i, r.Change, current, previous, c.change, c.current, c.previous)
		}
		if (d.Stamp() != stamp) != (c.change != Kept) {
			t.Errorf("%d: a daemon doesn't see the change, or sees one where there is none", i)
		}
	}
	all, err := d.Results()
	if err != nil || len(all) != 9 || all[2].Change != Replaced {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	d := folder(t)
	must.OK(t, d.Replace(builtIn(t)))
	if info, err := os.Stat(d.Current()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := Load(d.Current(), policy.Makespan); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "the objective is the makespan") {
		t.Errorf("another objective: %v", err)
	}
	whole := must.Get(os.ReadFile(d.Current()))(t)
	for _, c := range []struct {
		name   string
		damage func() error
	}{
		{"cut", func() error { return os.WriteFile(d.Current(), whole[:len(whole)/2], 0o600) }},
		{"empty", func() error { return os.WriteFile(d.Current(), nil, 0o600) }},
		{"folder", func() error { return errors.Join(os.Remove(d.Current()), os.Mkdir(d.Current(), 0o700)) }},
		{"link", func() error { return errors.Join(os.Remove(d.Current()), os.Symlink("/dev/zero", d.Current())) }},
	} {
		if err := c.damage(); err != nil {
			t.Fatal(c.name, err)
		}
		if got, err := Load(d.Current(), policy.Turnaround); !errors.Is(err, ErrUnusable) || got != nil || !strings.Contains(err.Error(), d.Current()) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	must.OK(t, os.WriteFile(d.results(), []byte("{"), 0o600))
	if all, err := d.Results(); err == nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	must.OK(t, d.Add(&Result{Change: Kept}))
	for range mostKept + 5 {
		must.OK(t, d.Add(&Result{Change: Kept}))
	}
	if all, err := d.Results(); err != nil || len(all) != mostKept {
		t.Errorf("%d results are kept, %v", len(all), err)
	}
}

func TestOneRetrainingAtATime(t *testing.T) {
	d := folder(t)
	if _, err := d.Lock(); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
}
