package loop_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// head is a daemon on a host of its own; its gates carry its name.
type head struct {
	*model
	name    string
	b       *loop.Bridge
	journal *memory
	changes int // that it sent
}

func newHead(m *model, name string, journal *memory) *head {
	h := &head{model: m, name: name, journal: journal}
	h.b = bridge(m, journal)
	h.b.Slurm, h.b.Gate.Slurm, h.b.Gate.Name = h, h, name
	return h
}

func (h *head) CreateGate(ctx context.Context, lease time.Duration, partitions []string) (string, error) {
	id, err := h.model.CreateGate(ctx, lease, partitions)
	if err == nil {
		h.gates[len(h.gates)-1].owner = h.name
	}
	return id, err
}

func (h *head) ClaimGate(_ context.Context, id string) error {
	for _, g := range h.gates {
		if g.id == id && !g.open {
			g.owner = h.name
			return nil
		}
	}
	return job.ErrNoJob
}

func (h *head) UpdateAll(ctx context.Context, all []job.Update) []error {
	h.changes += len(all)
	return h.model.UpdateAll(ctx, all)
}

// round does one round and returns whether the daemon is standby.
func (h *head) round(t *testing.T) bool {
	t.Helper()
	before := h.changes
	if _, err := h.b.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	standby := h.b.Status().Standby != ""
	if standby && h.changes != before {
		t.Fatalf("%s is standby and has changed jobs", h.name)
	}
	return standby
}

func TestStandbyTakesOver(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	one, two := newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())
	two.b.Gate.File = filepath.Join(t.TempDir(), "gate")
	both := func(d time.Duration) {
		for end := m.now.Add(d); m.now.Before(end); m.advance(time.Second) {
			one.round(t)
			two.round(t)
		}
	}
	p := app("alexnet", 60, 0.3, 2000)
	both(2 * time.Second)
	first := []*mjob{m.submit("ann", 40*time.Second, p, true), m.submit("ann", 60*time.Second, p, true)}
	waits := []*mjob{m.submit("bob", 60*time.Second, p, true), m.submit("bob", 60*time.Second, p, true)}
	both(5 * time.Second)
	if first[0].State != job.Running || first[1].State != job.Running || waits[0].State != job.Pending || two.b.Status().Standby != "head1" || two.b.Status().Gate == "" {
		t.Fatalf("%s, %s; standby %+v", first[0].State, first[1].State, two.b.Status().Standby)
	}
	// A slurmctld on the second host gates new jobs by the first one's gate.
	text, err := os.ReadFile(two.b.Gate.File)
	if err != nil || !strings.Contains(string(text), "job="+one.b.Gate.ID()+"\n") {
		t.Errorf("the gate file says %q, %v", text, err)
	}
	if len(two.journal.groups) != 0 {
		t.Error("the standby has made groups")
	}
	// The first host is gone: within two leases the second one decides.
	for end := m.now.Add(2 * time.Minute); m.now.Before(end); m.advance(time.Second) {
		two.round(t)
	}
	if st := two.b.Status(); st.Standby != "" || two.b.Gate.ID() == "" {
		t.Fatalf("standby of %q", st.Standby)
	}
	more := []*mjob{m.submit("ann", 60*time.Second, p, true), m.submit("ann", 60*time.Second, p, true)}
	for end := m.now.Add(2 * time.Minute); m.now.Before(end); m.advance(time.Second) {
		two.round(t)
		if more[0].State == job.Running && more[1].State == job.Running {
			break
		}
	}
	if !more[0].began.Equal(more[1].began) {
		t.Errorf("jobs started at %v and %v after the take-over", more[0].began, more[1].began)
	}
	// The first host is back, with a journal that is out of date.
	one = newHead(m, "head1", one.journal)
	both(5 * time.Second)
	if one.b.Status().Standby != "head2" {
		t.Errorf("standby of %q", one.b.Status().Standby)
	}
	for id, g := range one.journal.groups {
		if g.State != job.Done {
			t.Errorf("group %d is %s", id, g.State)
		}
	}
	both(4 * time.Minute)
	for _, j := range m.jobs {
		if !j.ended {
			t.Errorf("job %s has not ended", j.Ref)
		}
	}
}

// A daemon that was stopped for longer than its lease finds its gate taken over and gives way.
func TestHungDaemonGivesWay(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.lingers = true
	one, two := newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())
	one.round(t)
	two.round(t)
	gate := one.b.Gate.ID()
	m.advance(70 * time.Second)
	if err := one.b.Gate.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	two.round(t)
	if two.b.Gate.ID() != gate || two.b.Status().Standby != "" {
		t.Fatalf("gate %q was not taken over: %q", gate, two.b.Gate.ID())
	}
	m.advance(time.Second)
	if !one.round(t) || one.b.Gate.ID() != "" || m.gates[0].open {
		t.Error("the first daemon keeps a gate that is another's")
	}
}

// Whatever becomes of two daemons, at most one changes jobs, and every job runs once.
func TestTwoDaemonsNeverBoth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(node("n1", 2, 16))
		m.lingers = rapid.Bool().Draw(rt, "gates linger")
		heads := []*head{newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())}
		down := []bool{false, false}
		p := app("alexnet", 60, 0.3, 2000)
		for range rapid.IntRange(20, 200).Draw(rt, "seconds") {
			switch i := rapid.IntRange(0, 40).Draw(rt, "event"); {
			case i < 2:
				down[i] = true
			case i < 6 && down[i%2]:
				down[i%2] = false
				if rapid.Bool().Draw(rt, "restarted") {
					heads[i%2] = newHead(m, heads[i%2].name, heads[i%2].journal)
				}
			case i < 12 && len(m.jobs) < 12:
				m.submit("ann", time.Duration(rapid.IntRange(5, 60).Draw(rt, "runs"))*time.Second, p, true)
			}
			acting := ""
			for i, h := range heads {
				if down[i] {
					continue
				}
				if !h.round(t) {
					acting += h.name
				}
			}
			if acting == "head1head2" {
				rt.Fatalf("both decide at %v", m.now)
			}
			m.advance(time.Second)
		}
		for range 1000 {
			for _, h := range heads {
				h.round(t)
			}
			m.advance(time.Second)
		}
		for _, j := range m.jobs {
			if !j.ended {
				rt.Fatal(fmt.Sprintf("job %s is %s, Dependency %v", j.Ref, j.State, j.Dependency))
			}
		}
	})
}
