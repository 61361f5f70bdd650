package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// stage is a test's private Slurm, and what tests of all kinds do with it.
type stage struct {
	slurm *slurmtest.Cluster
	t     *testing.T
}

// patience is how long a test waits for what has to come: a busy machine takes its time, and what never comes isn't
// there after three minutes either.
const patience = 3 * time.Minute

// release is that of the Slurm that tests run.
func release(t *testing.T) string {
	t.Helper()
	return must.Get(slurmtest.ReleaseOf(t.Context(), os.Getenv("SLURMBRIDGE_TEST_ROOT")))(t)
}

// until fails the test unless ok comes true; what is it that was waited for.
func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	if !s.slurm.Wait(s.t.Context(), patience, ok) {
		s.t.Fatalf("in vain: %s", what)
	}
}

// reach fails the test unless each job gets into one of the states.
func (s *stage) reach(states string, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		if last, ok := s.slurm.WaitState(s.t.Context(), patience, id, strings.Fields(states)...); !ok {
			f := s.job(id)
			said, _ := os.ReadFile(f["StdOut"])
			s.t.Fatalf("job %s is %s, not %s: %v\n%.2000s", id, last, states, f, said)
		}
	}
}

// looks waits for a job to look so.
func (s *stage) looks(what, id string, ok func(f map[string]string) bool) {
	s.t.Helper()
	var f map[string]string
	if !s.slurm.Wait(s.t.Context(), patience, func() bool { f = s.job(id); return ok(f) }) {
		s.t.Fatalf("job %s is not %s: %v", id, what, f)
	}
}

func (s *stage) job(id string) map[string]string {
	s.t.Helper()
	return must.Get(s.slurm.Job(s.t.Context(), id))(s.t)
}

// as is what a command says that a user gives, "" = root.
func (s *stage) as(user, name string, args ...string) string {
	s.t.Helper()
	return must.Get(s.slurm.RunAs(s.t.Context(), user, name, args...))(s.t)
}

// says is what a command of root's says, whether it fails or not: until asks again.
func (s *stage) says(name string, args ...string) string {
	out, _ := s.slurm.Run(s.t.Context(), name, args...)
	return out
}

func (s *stage) scontrol(args ...string) {
	s.t.Helper()
	s.as("", "scontrol", args...)
}

func (s *stage) cancel(ids ...string) {
	s.t.Helper()
	s.as("", "scancel", ids...)
}

// inService fails the test if a node is out of service.
func (s *stage) inService() {
	s.t.Helper()
	states := s.as("", "sinfo", "-h", "-N", "-o", "%T %E")
	if slices.ContainsFunc([]string{"drain", "down"}, func(bad string) bool { return strings.Contains(states, bad) }) {
		s.t.Errorf("nodes: %s", states)
	}
}
