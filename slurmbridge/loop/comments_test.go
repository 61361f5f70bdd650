package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// AdminComments name a job's co-runners, and the terms of its comment that were ignored.
// Comments that others wrote are never replaced, and none is written twice.
func TestAdminComments(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	mem := newMemory()
	b := bridge(m, mem)
	tick(t, b, m, time.Second)
	p := app("a", 600, 0.3, 2000)
	short, long := m.submit("ann", 20*time.Second, p, true), m.submit("ann", time.Hour, p, true)
	taken := m.submit("ann", time.Hour, p, true)
	taken.said = "the site's own"
	odd := m.submit("bob", time.Hour, p, true)
	odd.Comment = "share:max-slowdown=fast"
	for _, o := range []*mjob{short, long, taken, odd} {
		o.CPUs = 1
	}
	tick(t, b, m, 5*time.Second)
	for _, o := range []*mjob{short, long} {
		if want := "] on n1 gpu 0 together: " + short.Ref; !strings.HasPrefix(o.said, "slurmbridge: [mps:3") || !strings.Contains(o.said, want) || !strings.Contains(o.said, long.Ref) {
			t.Errorf("job %s, %s: %q", o.Ref, o.State, o.said)
		}
	}
	if taken.said != "the site's own" {
		t.Errorf("somebody else's comment is %q now", taken.said)
	}
	if !strings.Contains(odd.said, "ignored share:max-slowdown") || !strings.Contains(odd.said, "1.15") {
		t.Errorf("a contract without sense: %q", odd.said)
	}
	said := m.words
	tick(t, b, m, 5*time.Second)
	if m.words != said {
		t.Errorf("%d comments more, while nothing happened", m.words-said)
	}
	// One that starts anew asks first, and says nothing again.
	b = bridge(m, mem)
	tick(t, b, m, 3*time.Second)
	if m.words != said {
		t.Errorf("%d comments more after a restart", m.words-said)
	}
	// What others write over it stays, and what the bridge said doesn't come back.
	long.said = "cancelled for maintenance"
	for !short.ended {
		tick(t, b, m, 5*time.Second)
	}
	tick(t, b, m, 5*time.Second)
	if long.said != "cancelled for maintenance" {
		t.Errorf("a comment that others wrote later is %q now", long.said)
	}
	said = m.words
	b.Mode = job.Shadow
	tick(t, b, m, 30*time.Second)
	if m.words != said {
		t.Error("shadow writes comments")
	}
}

// What was announced of a job and became untrue doesn't stay: it says where it runs instead.
func TestUntrueCommentsGo(t *testing.T) {
	m := newModel(node("n1", 1, 8), node("n2", 1, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	j := m.submit("ann", time.Hour, nil, true)
	tick(t, b, m, 3*time.Second)
	if j.State != job.Running || release.Announced(j.said) != "" {
		t.Fatalf("job %s is %s and says %q: nothing is to be announced of it", j.Ref, j.State, j.said)
	}
	j.said = "slurmbridge: starts on n9 gpu 0 when 77 has ended"
	b = bridge(m, newMemory()) // one that reads it anew
	j.Comment = "share:max-slowdown=fast"
	tick(t, b, m, 3*time.Second)
	if !strings.Contains(j.said, "ignored share") || strings.Contains(j.said, "not shared") {
		t.Errorf("of a term without sense it says %q", j.said)
	}
	j.Comment = ""
	tick(t, b, m, 3*time.Second)
	if want := "slurmbridge: on " + j.Nodes + ", not shared"; j.said != want {
		t.Errorf("it says %q, want %q", j.said, want)
	}
	said := m.words
	tick(t, b, m, 10*time.Second)
	if m.words != said {
		t.Errorf("%d comments more, while nothing happened", m.words-said)
	}
}
