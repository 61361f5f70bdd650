package loop_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// onItsClock is a gate on the bubble's clock.
func onItsClock(m *model, lease time.Duration) *loop.Gate {
	return &loop.Gate{Slurm: m, Lease: lease, Sharing: job.MPS, Now: time.Now}
}

// tend is a round that has come on.
func tend(t *testing.T, g *loop.Gate, m *model) {
	t.Helper()
	s := must.Get(m.Poll(t.Context()))(t)
	s.At = time.Now()
	must.OK(t, g.Tend(t.Context(), s))
}

// withFile is a cluster of one GPU, and a bridge with a gate file.
func withFile(t *testing.T, nodes ...job.Node) (*model, *loop.Bridge) {
	m := newModel(nodes...)
	b := bridge(m, m.mem)
	b.Gate.File = filepath.Join(t.TempDir(), "gate")
	return m, b
}

// said is what the gate file says.
func said(t *testing.T, b *loop.Bridge) string {
	t.Helper()
	return string(must.Get(os.ReadFile(b.Gate.File))(t))
}

// shareAtOnce submits two jobs and checks that they start together.
func shareAtOnce(t *testing.T, m *model, b *loop.Bridge) {
	t.Helper()
	one, two := m.pair(time.Minute)
	tick(t, b, m, 5*time.Second)
	bothRun(t, one, two)
	must.Equal(t, one.Request.Count+two.Request.Count, 66, "shares of both, which leave a third")
	st := b.Status()
	must.Equal(t, st.Gate != "" && st.GateErr == "" && st.Misread == nil, true, "gate %q, %q", st.Gate, st.GateErr)
}

// A release whose words have changed is noticed by what it says of the gate: no job is touched, those that wait are
// ordinary jobs at once, status and readiness name the field, and the next release is tried anew.
func TestSlurmThatIsNotUnderstood(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *model, wrong bool)
		says   string
	}{
		"a field says another thing": {func(m *model, wrong bool) {
			if m.misread = nil; wrong {
				m.misread = []job.Misread{{
					Field: "squeue's oversubscribe", Says: "NO",
					Truth: "the gate doesn't keep other jobs off its node",
				}}
			}
		}, `squeue's oversubscribe says "NO"`},
		"the gate isn't shown": {func(m *model, wrong bool) { m.hideGates = wrong }, "the gate was submitted"},
	} {
		t.Run(name, func(t *testing.T) {
			m, b := withFile(t, node("n1", 1, 8))
			tick(t, b, m, 3*time.Second)
			shareAtOnce(t, m, b)
			// It is updated under the bridge.
			m.release = "27.05.0"
			c.change(m, true)
			waits := m.submit("ann", 60*time.Second, light(), true)
			before := m.updates
			tick(t, b, m, 10*time.Second)
			st := b.Status()
			if len(st.Misread) != 1 || st.Gate != "" ||
				!strings.Contains(st.GateErr, "release 27.05.0 of Slurm is not understood, and no job is touched") ||
				!strings.Contains(st.GateErr, c.says) {
				t.Errorf("misread %v, gate %q, error %q", st.Misread, st.Gate, st.GateErr)
			}
			must.Equal(t, said(t, b), "gres=mps\nunits=100\n")
			for _, g := range m.gates {
				must.Equal(t, g.Open, true, "gate %s lets jobs go", g.ID)
			}
			made := len(m.gates)
			tick(t, b, m, 3*time.Minute)
			must.Equal(t, m.updates-before+len(m.gates)-made, 0, "changes and gates more")
			must.Equal(t, waits.State == job.Pending, false, "the job still waits")
			// The next release is read as it is meant, or the bridge knows it.
			m.release = "27.05.1"
			c.change(m, false)
			tick(t, b, m, 2*time.Second)
			shareAtOnce(t, m, b)
		})
	}
}

// A slurmctld that loses its state loses gates before a poll shows them: each is made anew, and Slurm is understood.
func TestGatesThatGetLost(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	for range 6 {
		m.gates = nil
		tick(t, b, m, time.Second)
	}
	shareAtOnce(t, m, b)
}

// While a round takes long and comes on, the lease stays fresh. Once it hangs, the lease
// runs out after two minutes and a lease at the most, whatever the lease is.
func TestLeaseBesideTheRound(t *testing.T) {
	for _, lease := range []time.Duration{20 * time.Second, time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel(node("n1", 1, 8))
			g := onItsClock(m, lease)
			tend(t, g, m)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { g.Run(ctx); close(ended) }()
			for range 60 { // a long round
				time.Sleep(10 * time.Second)
				g.Progress()
				if g.Left() < lease/2 {
					t.Fatalf("lease %v: %v is left in a round that comes on", lease, g.Left())
				}
			}
			since := time.Now()
			for g.Left() > 0 {
				time.Sleep(time.Second)
			}
			hung, bound := time.Since(since), max(2*time.Minute, lease)+lease+time.Second
			if hung < 2*time.Minute || hung > bound {
				t.Errorf("lease %v: it ran out %v after the round hung, not within %v", lease, hung, bound)
			}
			tend(t, g, m)
			if g.Left() < lease*2/3 {
				t.Errorf("lease %v: %v is left when the rounds go on", lease, g.Left())
			}
			cancel()
			<-ended
		})
	}
}

// A bridge that ends takes everything beside its rounds with it, whatever it was at.
func TestRunEndsWhatItStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails where a goroutine is left
		m := newModel(node("n1", 1, 8))
		b := bridge(m, m.mem)
		m.hangs, b.Now, b.Gate = true, time.Now, onItsClock(m, time.Minute)
		m.submit("ann", time.Minute, nil, false).Request = job.GPURequest{Kind: job.SharedGPU}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		must.Equal(t, errors.Is(b.Run(ctx, nil), context.DeadlineExceeded), true, "it ended in time")
	})
}

// where are the partitions of the one gate.
func (m *model) where(t *testing.T) string {
	t.Helper()
	must.Equal(t, len(m.gates), 1, "gates")
	return strings.Join(m.gates[0].Partitions, ",")
}

// The gate is in every partition where GPUs are shared, or in the one of its own.
func TestPartitionsOfTheGate(t *testing.T) {
	n2, cpu := node("n2", 1, 8), node("n3", 0, 8)
	n2.Partitions, cpu.Partitions = []string{"night", "gpu"}, []string{"cpu"}
	m, b := started(t, node("n1", 1, 8), n2, cpu)
	must.Equal(t, m.where(t), "gpu,night")
	m.nodes[1].Partitions = []string{"night", "gpu", "new"}
	tick(t, b, m, time.Minute)
	must.Equal(t, m.where(t), "gpu,new,night")
	m.wholeNodes = map[string]bool{"new": true} // no job shares there, and the gate would look as no other job does
	tick(t, b, m, time.Minute)
	must.Equal(t, m.where(t), "gpu,night")
	m.wholeNodes = nil
	own := bridge(m, newMemory())
	own.Gate.Partition, m.gates = "gates", nil
	for _, c := range []struct {
		down bool // a gate in a partition that isn't up could not end
		want string
	}{{false, "gates"}, {true, "gpu,new,night"}, {false, "gates"}} {
		m.closed = map[string]bool{"gates": c.down}
		tick(t, own, m, 30*time.Second)
		must.Equal(t, m.where(t), c.want, "the gate's partition is down: %v", c.down)
	}
}

// In shadow mode, and before a poll has shown how, the file still says what shares are called: without it the script
// would ask for mps where GPUs are shared by shard, which Slurm refuses. How GPUs are shared is the last poll's.
func TestTheGateFileSaysHowGPUsAreShared(t *testing.T) {
	m, b := withFile(t, node("n1", 1, 8), node("n2", 1, 16))
	for i := range m.nodes {
		m.nodes[i].Sharing = job.Shard
	}
	b.Mode = job.Shadow
	tick(t, b, m, time.Second)
	must.Equal(t, said(t, b), "gres=shard\nunits=100\n")
	b.Mode, m.oneNode = job.Active, map[string]int{m.nodes[1].Partitions[0]: 8}
	tick(t, b, m, time.Second)
	if text := said(t, b); !strings.HasPrefix(text, "job=") || !strings.Contains(text, "\ngres=shard\n") ||
		!strings.Contains(text, "\nsize="+m.nodes[1].Partitions[0]+":8\n") {
		t.Errorf("%q", text)
	}
	must.OK(t, loop.CloseGateFile(b.Gate.File))
	must.Equal(t, said(t, b), "gres=shard\nunits=100\n")
	// The script takes the gate's partition out of other jobs' lists, whether the bridge runs or not.
	b.Gate.Partition = "gates"
	tick(t, b, m, 30*time.Second)
	must.OK(t, loop.CloseGateFile(b.Gate.File))
	must.Equal(t, said(t, b), "gres=shard\nunits=100\npartition=gates\n")
	must.OK(t, os.WriteFile(b.Gate.File, []byte("job=7\nexpires=1\n"), 0o644), loop.CloseGateFile(b.Gate.File))
	must.Is(t, must.Err(os.Stat(b.Gate.File)), os.ErrNotExist, "a file that doesn't say it")
}

// Without a gate no file names one, and the status says why.
func TestRefusedGate(t *testing.T) {
	m, b := withFile(t, node("n1", 1, 8))
	tick(t, b, m, time.Second)
	tries := 0
	m.gates[0].Open, m.refuseGateIn = true, func([]string) bool { tries++; return true }
	ungated := m.submit("ann", time.Minute, nil, false) // no script turned its request into shares
	ungated.Request = job.GPURequest{Kind: job.SharedGPU}
	tick(t, b, m, 3*time.Second)
	must.Equal(t, ungated.State, job.Running, "without a gate")
	must.Equal(t, ungated.Request.Count, job.Units, "without a gate")
	must.Equal(t, said(t, b), "gres=mps\nunits=100\n")
	if st := b.Status(); st.Gate != "" || !strings.Contains(st.GateErr, "create gate") {
		t.Errorf("gate %q, %q", st.Gate, st.GateErr)
	}
	tried := tries
	tick(t, b, m, 20*time.Second)
	must.Equal(t, tries, tried, "gates submitted, within 20 s of the refusal")
	m.refuseGateIn = nil
	tick(t, b, m, time.Minute)
	shareAtOnce(t, m, b)
}

// A gate that Slurm refuses where it is to be is tried with what the cluster has, and the status says where it is and
// why.
func TestAGateIsTriedWhereSlurmTakesIt(t *testing.T) {
	for name, c := range map[string]struct {
		own    string                         // the gate's own partition
		refuse func(partitions []string) bool // what Slurm refuses
		want   string                         // the gate's partitions
	}{
		"its own":                  {"gates", func(p []string) bool { return slices.Contains(p, "gates") }, "gpu,night"},
		"one of them":              {"", func(p []string) bool { return slices.Contains(p, "night") || p == nil }, "gpu"},
		"no default, and together": {"", func(p []string) bool { return len(p) != 1 || p[0] == "gpu" }, "night"},
		"all but the default":      {"gates", func(p []string) bool { return p != nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n2 := node("n2", 1, 8)
			n2.Partitions = []string{"night", "gpu"}
			m := newModel(node("n1", 1, 8), n2)
			b := bridge(m, m.mem)
			b.Gate.Partition, m.refuseGateIn, m.gateAccount = c.own, c.refuse, "lab"
			tick(t, b, m, time.Second)
			must.Equal(t, m.where(t), c.want)
			if st := b.Status(); st.GateAccount != "lab" || st.Gate == "" ||
				!strings.Contains(st.GateErr, "instead: create gate") {
				t.Errorf("status %q, %q", st.Gate, st.GateErr)
			}
			// Slurm takes it where it is to be, later: it moves there.
			m.refuseGateIn = nil
			tick(t, b, m, time.Minute)
			m.where(t)
			must.Equal(t, b.Status().GateErr, "", "what is wrong with the gate")
		})
	}
}

// A change that could arrive after the gate has opened isn't sent, and its group not made.
func TestNothingIsMadeWhileTheGateMayOpen(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	one, two := m.pair(time.Minute)
	b.Fault = func(step string) {
		if step == "plan" { // it took long, and nothing renewed the lease beside it
			m.advance(55 * time.Second)
		}
	}
	must.Get(b.Tick(t.Context()))(t)
	must.Equal(t, m.updates, 0, "updates")
	must.Equal(t, one.Request.Count+two.Request.Count, 2*job.Units, "shares")
	b.Fault = nil
	tick(t, b, m, 5*time.Second)
	must.Equal(t, one.Request.Count+two.Request.Count, 66, "shares afterwards, which leave a third")
}

// A bridge that has lost its journal restores the jobs that an earlier one gave shares, a
// node and a dependency, wherever it was in that; so does `slurmbridge open`.
func TestMembersOfALostGroup(t *testing.T) {
	for i := range 4 {
		at, open := []string{"prepare", "release"}[i%2], i > 1
		m, b := started(t, node("n1", 1, 8))
		m.paused = true
		one, two := m.pair(time.Minute)
		b.Fault = func(step string) {
			if step == at {
				panic(death{})
			}
		}
		must.Equal(t, lives(t, b), false, "it is alive after %s", at)
		must.Equal(t, one.Request.Count < job.Units, true, "%s: shares were given", at)
		m.nodes[0].Up, m.paused = false, false // nothing can be planned
		if open {
			must.Equal(t, must.Get(loop.UngateAll(t.Context(), m, tracker.New(), ""))(t) >= 2, true, "both are freed")
			m.advance(time.Second)
		} else {
			must.Get(bridge(m, newMemory()).Tick(t.Context()))(t)
		}
		for _, j := range []*mjob{one, two} {
			behind := len(j.Dependency.List) == 1 && j.Dependency.List[0].Type == "after"
			if j.Request.Count != job.Units || j.ReqNodes != "" || behind == open || open && len(j.Dependency.List) > 0 {
				t.Errorf("%s, open %v: job %s has %d shares on %q, waits for %q", at, open, j.Ref, j.Request.Count, j.ReqNodes,
					j.Dependency.Raw)
			}
		}
	}
}

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

func (h *head) CreateGate(ctx context.Context, lease time.Duration, partitions []string) (id, account string,
	err error,
) {
	id, account, err = h.model.CreateGate(ctx, lease, partitions)
	if err == nil {
		h.gates[len(h.gates)-1].Owner = h.name
	}
	return id, account, err
}

func (h *head) ClaimGate(_ context.Context, id string) error {
	return h.onGate(id, func(g *job.GateState) { g.Owner = h.name })
}

func (h *head) UpdateAll(ctx context.Context, all []job.Update) []error {
	h.changes += len(all)
	return h.model.UpdateAll(ctx, all)
}

// round does one round and returns whether the daemon is standby.
func (h *head) round(t *testing.T) bool {
	t.Helper()
	before := h.changes
	must.Get(h.b.Tick(t.Context()))(t)
	standby := h.b.Status().Standby != ""
	if standby && h.changes != before {
		t.Fatalf("%s is standby and has changed jobs", h.name)
	}
	return standby
}

// While a daemon is standby its gate file names the other's gate, for a slurmctld on its host. A daemon that was
// stopped for longer than its lease finds its gate taken over and gives way, with the groups that it has made.
func TestHungDaemonGivesWay(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.lingers = true
	one, two := newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())
	two.b.Gate.File = filepath.Join(t.TempDir(), "gate")
	one.round(t)
	m.pair(10 * time.Minute)
	one.round(t)
	two.round(t)
	gate := one.b.Gate.ID()
	if text := said(t, two.b); !strings.HasPrefix(text, "job="+gate+"\n") || len(one.journal.groups) == 0 {
		t.Fatalf("the gate file says %q, groups %v", text, one.journal.groups)
	}
	m.advance(70 * time.Second)
	must.OK(t, one.b.Gate.Renew(t.Context()))
	two.round(t)
	if two.b.Gate.ID() != gate || two.b.Status().Standby != "" {
		t.Fatalf("gate %q was not taken over: %q", gate, two.b.Gate.ID())
	}
	m.advance(time.Second)
	if !one.round(t) || one.b.Gate.ID() != "" || m.gates[0].Open {
		t.Error("the first daemon keeps a gate that is another's")
	}
	for id, g := range one.journal.groups {
		must.Equal(t, g.State, job.Done, "group %d", id)
	}
}

// Two daemons come back when the lease is over: the one that kept the gate gives way to the one that has made another.
func TestAnOpenGateIsNobodysClaim(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	one, two := newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())
	two.round(t)
	m.advance(time.Minute)
	must.Equal(t, one.round(t), false, "the first is standby")
	must.Equal(t, two.round(t), true, "the second is standby")
}

// Whatever becomes of two daemons, at most one changes jobs, and every job runs once.
func TestTwoDaemonsNeverBoth(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		m := newModel(node("n1", 2, 16))
		m.lingers = rapid.Bool().Draw(rt, "gates linger")
		heads := []*head{newHead(m, "head1", newMemory()), newHead(m, "head2", newMemory())}
		down := []bool{false, false}
		p := light()
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
			acting := 0
			for i, h := range heads {
				if !down[i] && !h.round(t) {
					acting++
				}
			}
			if acting > 1 {
				rt.Fatalf("both decide at %v", m.now)
			}
			m.advance(time.Second)
		}
		for i := 0; i < 1000 && !m.allEnded(); i++ {
			for _, h := range heads {
				h.round(t)
			}
			m.advance(time.Second)
		}
		allRan(rt, m.jobs)
	})
}

// While the host of the bridge is suspended, Slurm's clock goes on and the process's own stands still: what is left of
// the gate's lease is by the former.
func TestLeaseAfterASuspend(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	now := time.Now()
	b := bridge(m, m.mem)
	b.Gate.Now = func() time.Time { return now }
	must.Get(b.Tick(t.Context()))(t)
	must.Equal(t, b.Gate.Holds(), true)
	const wallSecond = 1 << 30 // in the first word of a time.Time that has both clocks
	*(*uint64)(unsafe.Pointer(&now)) += 3600 * wallSecond
	must.Equal(t, b.Gate.Holds(), false, "%v are left", b.Gate.Left())
}
