package loop_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// model is a small Slurm in memory for property tests over thousands of random queues: dependencies, priorities, shares
// placed first-fit, a clock of its own. What the real one does is tested on the real one.
type model struct {
	mem     *memory // the journal of its bridges
	unknown string  // an application without a profile yet
	between func()  // after each of many updates; nil = nothing
	now     time.Time
	nodes   []job.Node
	jobs    []*mjob
	gates   []*job.GateState
	lingers bool // gates stay closed for a while after their lease, until Slurm looks at them
	next    int64
	// awaited are the jobs that jobs without a GPU wait for.
	awaited map[string]bool
	// fail makes the n-th update from now fail after it was applied to the first job of its list.
	fail int
	down bool
	// dull: it looks at its queue twice a minute, and at jobs with StartTime=now.
	dull bool
	// paused: it starts no job.
	paused bool
	// most limits how many jobs of a user run at a time, as MaxJobsPerUser of a QOS; no entry = any number.
	most map[string]int
	// mostShares limits a user's shares, as GrpTRES of an association.
	mostShares map[string]int
	// shut names, by node, the user whose jobs can't start there, as with a reservation that begins before they would end.
	shut map[string]string
	// reason is the Reason of jobs over most, "" = the QOS's limit.
	reason string
	// kept holds the nodes whose idle GPUs are kept for a pending job of several GPUs.
	kept map[string]bool
	// leastLoaded: LL_SHARED_GRES is set.
	leastLoaded bool
	// slip, if set, says how much time passes after an update, lag how much before it
	// arrives; no command is under way for longer than 10 s.
	slip, lag func() time.Duration
	// beside, if set, is called each second: what the bridge does beside its rounds.
	beside func()
	// started is called as each job starts.
	started func(*mjob)
	bounds  job.Bounds
	asked   int // for bounds
	// stubborn: changes of time limits are undone.
	stubborn bool
	// plugin is the site's slurm_job_modify: it may refuse a change of a job, or make another one of it. Of the gate's own
	// changes it sees "", and what it makes of them doesn't count.
	plugin func(ref string, u *job.Update) error
	// refuseGateIn: Slurm takes none in these partitions, nil = the default one.
	refuseGateIn func(partitions []string) bool
	gateAccount  string          // that Slurm takes the gate in
	closed       map[string]bool // partitions that aren't up
	// release is Slurm's, "" = 22.05.8; misread is what it says of gates that isn't so, and hideGates that it shows none.
	release    string
	misread    []job.Misread
	hideGates  bool
	oneNode    map[string]int
	wholeNodes map[string]bool
	remembers  time.Duration // see Snapshot
	frozen     *job.Snapshot // what polls show instead of what is so; nil = what is so
	polled     func()        // after a poll; nil = nothing
	hangs      bool          // it answers no change before the command is ended
	updates    int
	words      int // AdminComments written
}

type mjob struct {
	job.Job
	run    time.Duration // how long it runs
	ended  bool
	gpu    int
	profil *rlcore.Profile
	began  time.Time
	over   time.Time // when it ended
	now    bool      // to start at once
	said   string    // AdminComment
	fails  bool      // it ends badly
}

func newModel(nodes ...job.Node) *model {
	return &model{mem: newMemory(), now: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), nodes: nodes, next: 100}
}

// started is a cluster and a bridge that has made its gate there.
func started(t testing.TB, nodes ...job.Node) (m *model, b *loop.Bridge) {
	t.Helper()
	m = newModel(nodes...)
	b = bridge(m, m.mem)
	tick(t, b, m, time.Second)
	return m, b
}

// tick runs the bridge once a second, as events would, for the given time.
func tick(t testing.TB, b *loop.Bridge, m *model, d time.Duration) {
	t.Helper()
	for end := m.now.Add(d); m.now.Before(end); {
		if _, err := b.Tick(context.Background()); err != nil && !m.down {
			t.Fatal(err)
		}
		m.advance(time.Second)
	}
}

// untilEnded runs the bridge until jobs have ended.
func untilEnded(t testing.TB, b *loop.Bridge, m *model, jobs ...*mjob) {
	t.Helper()
	for slices.ContainsFunc(jobs, func(j *mjob) bool { return !j.ended }) {
		tick(t, b, m, time.Second)
	}
}

// bothRun are needed for the rest of a test.
func bothRun(t testing.TB, a, b *mjob) {
	t.Helper()
	if a.State != job.Running || b.State != job.Running {
		t.Fatalf("job %s is %s, job %s %s", a.Ref, a.State, b.Ref, b.State)
	}
}

// allRan checks that jobs have come to their ends.
func allRan(t must.T, jobs []*mjob) {
	t.Helper()
	for _, j := range jobs {
		if !j.ended {
			t.Errorf("job %s is %s, asks %s, depends on %q, node %q", j.Ref, j.State, j.Request.Raw, j.Dependency.Raw,
				j.ReqNodes)
		}
	}
}

func (m *model) clock() time.Time { return m.now }

// submit adds a job as the job_submit script would leave it.
func (m *model) submit(user string, run time.Duration, p *rlcore.Profile, gated bool) *mjob {
	m.next++
	j := &mjob{run: run, profil: p}
	j.ID, j.Ref = m.next, strconv.FormatInt(m.next, 10)
	j.User, j.State, j.Submit, j.Partition = user, job.Pending, m.now, "gpu"
	j.Priority = 1_000_000 - m.next
	j.CPUs, j.NumNodes = 1, 1
	j.Request = job.GPURequest{Kind: job.Shares, Sharing: m.nodes[0].Sharing, Count: 100, Raw: "gres:mps:100"}
	if gated {
		for _, g := range slices.Backward(m.gates) {
			if !g.Open {
				m.depend(j, "after:"+g.ID)
				break
			}
		}
	}
	m.jobs = append(m.jobs, j)
	return j
}

// light is an application that leaves room for others on a GPU.
func light() *rlcore.Profile { return app("alexnet", 60, 0.3, 2000) }

// pair submits two jobs that may share a GPU.
func (m *model) pair(run time.Duration) (one, two *mjob) {
	p := light()
	return m.submit("ann", run, p, true), m.submit("ann", run, p, true)
}

// requeued makes a running job pending again.
func (j *mjob) requeued() { j.State, j.Nodes, j.GPUs, j.Start = job.Pending, "", nil, time.Time{} }

func (m *model) depend(j *mjob, list string) {
	j.Dependency = job.Dependencies{Raw: list}
	for _, term := range strings.Split(list, ",") {
		if typ, id, ok := strings.Cut(term, ":"); ok {
			j.Dependency.List = append(j.Dependency.List, job.Dependency{Type: typ, Job: id})
		}
	}
}

// find returns a job that has not ended.
func (m *model) find(ref string) *mjob {
	i := slices.IndexFunc(m.jobs, func(j *mjob) bool { return j.Ref == ref && !j.ended })
	if i < 0 {
		return nil
	}
	return m.jobs[i]
}

// advance lets time pass in steps, with Slurm's own work after each.
func (m *model) advance(d time.Duration) {
	for end := m.now.Add(d); m.now.Before(end); {
		m.now = m.now.Add(min(time.Second, end.Sub(m.now)))
		m.schedule()
		if m.beside != nil {
			m.beside()
		}
	}
}

func (m *model) schedule() {
	for _, g := range m.gates {
		ends := g.Begin
		if m.lingers {
			ends = ends.Add(40 * time.Second)
		}
		if !g.Open && !m.now.Before(ends) && g.Priority > 0 {
			g.Open = true
		}
	}
	for _, j := range m.jobs {
		switch ran := m.now.Sub(j.began); {
		case j.State != job.Running || j.ended:
		case ran >= j.run:
			j.ended, j.over, j.State = true, m.now, "COMPLETED"
		case j.TimeLimit > 0 && ran >= j.TimeLimit:
			j.ended, j.over, j.State = true, m.now, "TIMEOUT"
		}
	}
	for _, j := range m.jobs {
		if j.ended || j.State != job.Pending {
			continue
		}
		j.Dependency.List = slices.DeleteFunc(j.Dependency.List, func(d job.Dependency) bool {
			closed := func(g *job.GateState) bool { return g.ID == d.Job && !g.Open }
			return !slices.ContainsFunc(m.gates, closed) && m.find(d.Job) == nil
		})
	}
	if m.paused {
		return
	}
	order := slices.Clone(m.jobs)
	slices.SortStableFunc(order, func(a, b *mjob) int { return int(b.Priority - a.Priority) })
	m.kept = map[string]bool{}
	for _, j := range order {
		if j.ended || j.State != job.Pending || len(j.Dependency.List) > 0 || j.Eligible.After(m.now) || j.Priority == 0 {
			continue
		}
		if m.dull && !j.now && m.now.Second()%30 != 0 {
			continue
		}
		if most, limited := m.mostShares[j.User]; limited && m.shares(j.User)+j.Request.Count > most {
			j.Reason = "AssocGrpGRES"
			continue
		}
		if most, limited := m.most[j.User]; limited && m.runs(j.User) >= most {
			j.Reason = cmp.Or(m.reason, "QOSMaxJobsPerUserLimit")
			continue
		}
		m.place(j)
	}
}

func (m *model) place(j *mjob) {
	for n := range m.nodes {
		node := &m.nodes[n]
		if !node.Up || j.ReqNodes != "" && j.ReqNodes != node.Name {
			continue
		}
		if m.kept[node.Name] {
			j.Reason = "Priority"
			continue
		}
		if m.shut[node.Name] == j.User {
			j.Reason = "ReqNodeNotAvail, May be reserved for other job"
			if j.ReqNodes == "" {
				j.Reason = "ReqNodeNotAvail, Reserved for maintenance"
			}
			continue
		}
		cpus, mem := node.Allocates(j.CPUs), node.Takes(&j.Job)
		free := make([]int, node.GPUs)
		for i := range free {
			free[i] = node.GPU(i).Units
		}
		for _, o := range m.running(func(o *mjob) bool { return o.Nodes == node.Name }) {
			for _, g := range o.GPUs {
				free[g] -= unitsOf(o)
			}
			cpus, mem = cpus+node.Allocates(o.CPUs), mem+o.HostMemMiB
		}
		if cpus > node.CPUs || mem > node.MemMiB {
			j.Reason = "Resources"
			continue
		}
		g := m.pick(free, unitsOf(j))
		gpus := []int{g}
		if j.Request.Kind == job.WholeGPU && j.Request.Count > 1 {
			if gpus = idle(free); len(gpus) < j.Request.Count {
				m.kept[node.Name], j.Reason = node.GPUs >= j.Request.Count, "Resources"
				continue
			}
			gpus = gpus[:j.Request.Count]
			g = gpus[0]
		}
		if g < 0 || j.Request.Kind == job.SharedGPU {
			continue
		}
		j.State, j.Nodes, j.gpu, j.began, j.Start, j.Expedited = job.Running, node.Name, g, m.now, m.now, false
		j.GPUs = gpus
		j.CPUs, j.HostMemMiB = node.Allocates(j.CPUs), node.Takes(&j.Job)
		if m.started != nil {
			m.started(j)
		}
		return
	}
}

// idle are the GPUs that have all their shares free.
func idle(free []int) (gpus []int) {
	for g, f := range free {
		if f == job.Units {
			gpus = append(gpus, g)
		}
	}
	return gpus
}

// unitsOf are the shares that a job takes.
func unitsOf(j *mjob) int {
	if j.Request.Kind == job.WholeGPU {
		return job.Units
	}
	return j.Request.Count
}

// pick is Slurm's choice of a GPU for a request for shares: the first with as many free, or the
// least loaded; −1 = none.
func (m *model) pick(free []int, shares int) int {
	at := -1
	for g, f := range free {
		if f >= shares && (at < 0 || m.leastLoaded && f > free[at]) {
			at = g
		}
	}
	return at
}

// running lists the jobs that run, of those that are wanted.
func (m *model) running(want func(j *mjob) bool) []*mjob {
	return slices.DeleteFunc(slices.Clone(m.jobs),
		func(j *mjob) bool { return j.State != job.Running || j.ended || !want(j) })
}

// runs counts a user's jobs that run.
func (m *model) runs(user string) int {
	return len(m.running(func(j *mjob) bool { return j.User == user }))
}

// shares counts the shares that a user's jobs hold.
func (m *model) shares(user string) (n int) {
	for _, j := range m.running(func(j *mjob) bool { return j.User == user }) {
		n += j.Request.Count
	}
	return n
}

// on lists the jobs that run on a GPU.
func (m *model) on(node string, gpu int) []*mjob {
	return m.running(func(j *mjob) bool { return j.Nodes == node && j.gpu == gpu })
}

func (m *model) Poll(ctx context.Context) (*job.Snapshot, error) {
	if m.polled != nil {
		defer m.polled()
	}
	return m.show(ctx)
}

func (m *model) Jobs(ctx context.Context, refs []string) ([]job.Job, error) {
	s, err := m.show(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(s.Jobs), func(j job.Job) bool { return !slices.Contains(refs, j.Ref) }), nil
}

func (m *model) show(context.Context) (*job.Snapshot, error) {
	switch {
	case m.down:
		return nil, job.ErrDown
	case m.frozen != nil:
		return m.frozen, nil
	}
	s := &job.Snapshot{
		At: m.now, Release: cmp.Or(m.release, "22.05.8"), Nodes: slices.Clone(m.nodes), Awaited: m.awaited,
		LeastLoaded: m.leastLoaded, OneNode: m.oneNode, WholeNodes: m.wholeNodes, Remembers: m.remembers,
	}
	for _, j := range m.jobs {
		if !j.ended {
			c := j.Job
			c.Dependency.List = slices.Clone(j.Dependency.List)
			_, c.AdminComment = job.ParseNote(j.said)
			s.Jobs = append(s.Jobs, c)
		}
	}
	for i := range s.Nodes {
		s.Nodes[i].CPUsAlloc, s.Nodes[i].MemAlloc = 0, 0
		for _, j := range m.running(func(j *mjob) bool { return j.Nodes == s.Nodes[i].Name }) {
			s.Nodes[i].CPUsAlloc += j.CPUs
			s.Nodes[i].MemAlloc += j.HostMemMiB
		}
	}
	for _, g := range m.gates {
		if !m.hideGates {
			shown := *g
			shown.Misread = m.misread
			s.Gates = append(s.Gates, shown)
		}
	}
	return s, nil
}

// UpdateAll makes updates one after the other; after each of them the bridge may die.
func (m *model) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	if m.hangs {
		<-ctx.Done()
		return slices.Repeat([]error{job.ErrDown}, len(all))
	}
	for i, u := range all {
		errs[i] = m.update(u)
		if m.between != nil {
			m.between()
		}
	}
	return errs
}

func (m *model) update(u job.Update) error {
	if m.down {
		return job.ErrDown
	}
	if m.lag != nil {
		m.advance(m.lag())
	}
	words := u.AdminComment != nil && u.Gres == nil && u.ReqNodes == nil
	if !words {
		m.updates++
	}
	failed := job.JobErrors{}
	for i, ref := range u.Jobs {
		one := u
		err := m.ask(ref, &one)
		switch j := m.find(ref); {
		case err != nil:
		case words && j != nil:
			j.said = *u.AdminComment
			m.words++
		case words:
		case m.fails(i):
			return job.ErrRefused
		default:
			err = m.change(j, &one)
		}
		failed.Add(err, []string{ref})
	}
	if m.slip != nil && !words {
		m.advance(m.slip())
	}
	return failed.Err()
}

// fails reports whether this is the update that fails, once it has been applied to the first job of its list.
func (m *model) fails(at int) bool {
	if m.fail == 0 {
		return false
	}
	m.fail--
	return m.fail == 0 && at > 0
}

// change changes a job, nil = it is gone.
func (m *model) change(j *mjob, u *job.Update) error {
	switch {
	case j == nil, u.TimeLimit == 0 && j.State != job.Pending:
		return job.ErrNoJob
	case u.TimeLimit > 0:
		if !m.stubborn {
			j.TimeLimit = u.TimeLimit
		}
		return nil
	}
	if u.Gres != nil {
		kind, n, _ := strings.Cut(*u.Gres, ":")
		c, err := strconv.Atoi(n)
		if err != nil {
			return fmt.Errorf("%w: %s", job.ErrRefused, *u.Gres)
		}
		j.Request = job.GPURequest{Kind: job.Shares, Sharing: job.Sharing(kind), Count: c, Raw: "gres:" + *u.Gres}
		if kind == "gpu" {
			j.Request = wholeGPU
		}
	}
	if u.ReqNodes != nil {
		j.ReqNodes = *u.ReqNodes
	}
	if u.Dependency != nil {
		m.depend(j, *u.Dependency)
		j.Reason = ""
	}
	if u.AdminComment != nil {
		j.said = *u.AdminComment
	}
	if j.now = u.StartNow; j.now {
		j.Eligible = m.now // as Slurm does, whatever its owner asked for
	}
	return nil
}

// ask lets the site's plugin see a change.
func (m *model) ask(ref string, u *job.Update) error {
	if m.plugin == nil {
		return nil
	}
	return m.plugin(ref, u)
}

func (m *model) Bounds(context.Context) (*job.Bounds, error) {
	if m.down {
		return nil, job.ErrDown
	}
	m.asked++
	return &m.bounds, nil
}

// allEnded reports whether no job waits or runs.
func (m *model) allEnded() bool {
	return !slices.ContainsFunc(m.jobs, func(j *mjob) bool { return !j.ended })
}

func (m *model) PartitionUp(_ context.Context, name string) (bool, error) {
	return !m.closed[name], nil
}

func (m *model) CreateGate(_ context.Context, lease time.Duration, partitions []string) (id, account string,
	err error,
) {
	if m.down {
		return "", "", job.ErrDown
	}
	if m.refuseGateIn != nil && m.refuseGateIn(partitions) {
		return "", "", job.ErrRefused
	}
	m.next++
	g := &job.GateState{
		ID: strconv.FormatInt(m.next, 10), Begin: m.now.Add(lease), Partitions: partitions, Priority: job.GatePriority,
	}
	m.gates = append(m.gates, g)
	return g.ID, m.gateAccount, nil
}

// onGate changes a gate that is closed.
func (m *model) onGate(gate string, do func(g *job.GateState)) error {
	for _, g := range m.gates {
		if g.ID == gate && !g.Open {
			do(g)
			return nil
		}
	}
	return job.ErrNoJob
}

func (m *model) RenewGate(_ context.Context, id string, lease time.Duration) error {
	if err := m.ask("", &job.Update{}); err != nil {
		return err
	}
	return m.onGate(id, func(g *job.GateState) { g.Begin = m.now.Add(lease) })
}

func (m *model) MendGate(_ context.Context, seen job.GateState, partitions []string) error {
	return m.onGate(seen.ID, func(g *job.GateState) { g.Partitions, g.Priority = partitions, job.GatePriority })
}

func (m *model) ClaimGate(context.Context, string) error { return nil }

func (m *model) OpenGate(_ context.Context, id string) error {
	_ = m.onGate(id, func(g *job.GateState) { g.Open = true }) // one that is gone is no error
	return nil
}

func (m *model) Script(_ context.Context, ref string) ([]byte, error) {
	return []byte("#!/bin/sh\napp" + ref + "\n"), nil
}

func (m *model) Describe(_ context.Context, refs []string) (map[string]job.Description, error) {
	out := map[string]job.Description{}
	for _, j := range m.jobs {
		d := job.Description{
			State: string(j.State), Requeue: j.Job.Requeue, Start: j.began, End: j.over.Truncate(time.Second),
		}
		if j.ended && j.fails {
			d.State = "FAILED"
		}
		if slices.Contains(refs, j.Ref) {
			out[j.Ref] = d
		}
	}
	return out, nil
}

func (m *model) Requeue(_ context.Context, ref string) error {
	for _, j := range m.jobs {
		if j.Ref == ref && j.ended && j.Job.Requeue {
			j.requeued()
			j.ended, j.over, j.Dependency = false, time.Time{}, job.Dependencies{}
			j.Eligible = m.now.Add(2 * time.Second)
			return nil
		}
	}
	return fmt.Errorf("requeue %s: %w", ref, job.ErrRefused)
}

// Identify implements loop.Apps with the profiles that the jobs were submitted with.
func (m *model) Identify(_ context.Context, j *job.Job, _ job.Terms, _ []byte) (string, error) {
	if f := m.find(j.Ref); f != nil && f.profil != nil {
		return f.profil.App, nil
	}
	return "unknown", nil
}

// Profile implements loop.Apps.
func (m *model) Profile(_ context.Context, user, key, _ string) (*rlcore.Profile, error) {
	for _, j := range m.jobs {
		if j.User == user && j.profil != nil && j.profil.App == key && key != m.unknown {
			return j.profil, nil
		}
	}
	return nil, nil
}

// memory is a Journal that outlives the bridges of one test.
type memory struct {
	groups  map[int64]job.Group
	next    int64
	log     []string
	plain   []byte           // the tracker's plain schedule
	tracker *tracker.Tracker // as it was last saved
	left    []tracker.Left   // the runs that are over
	full    bool             // the disk
}

var errFull = errors.New("database or disk is full")

// ending is how a job's run that began then ended, by polls; zero = they don't show that it has.
func (m *memory) ending(ref string, began time.Time) history.Ending {
	for _, l := range m.left {
		if l.Ref == ref && (l.Ending.Start.IsZero() || l.Ending.Start.Equal(began)) {
			return l.Ending
		}
	}
	return history.Ending{}
}

func newMemory() *memory { return &memory{groups: map[int64]job.Group{}, next: 1} }

func (m *memory) Load(context.Context) (*tracker.Tracker, error) {
	b := tracker.New()
	b.NextID = m.next
	if m.plain != nil {
		if err := json.Unmarshal(m.plain, b.Plain); err != nil {
			return nil, err
		}
	}
	for id, g := range m.groups {
		if own := g.Clone(); g.State != job.Done {
			b.Groups[id] = &own
		}
	}
	return b, nil
}

func (m *memory) SaveGroup(_ context.Context, g *job.Group) error {
	if m.full {
		return errFull
	}
	m.groups[g.ID] = g.Clone()
	m.next = max(m.next, g.ID+1)
	return nil
}

func (m *memory) SaveTracker(_ context.Context, t *tracker.Tracker) (err error) {
	if m.full {
		return errFull
	}
	m.tracker = t
	m.plain, err = json.Marshal(t.Plain)
	return err
}

func (m *memory) Log(_ context.Context, _ time.Time, _ job.Mode, _ map[string]int64, c *job.Change, err error) error {
	m.log = append(m.log, c.Text()+fmt.Sprint(" ", err))
	return nil
}

func (m *memory) SaveExplanations(context.Context, map[string]*job.Explanation) error { return nil }

func (m *memory) RecordRuns(_ context.Context, _ *job.Status, left []tracker.Left) error {
	m.left = append(m.left, left...)
	return nil
}

func (m *memory) RecordPoll(context.Context, *job.Status) error { return nil }

// fair predicts that sharers slow each other by the sum of their GPU use.
type fair struct{}

func (fair) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	sum := 0.0
	for _, p := range members {
		sum += p.Mean().GPU
	}
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: max(1, sum)}
	}
}

// most prefers the combination with the most jobs.
type most struct{}

func (most) Name() string { return "most" }
func (most) Score(dst []float64, _ *rlcore.Window, combos []rlcore.Combo) {
	for i, c := range combos {
		dst[i] = float64(c.Len())
	}
}

func app(name string, dur, gpu, mem float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: name, DurationS: dur, PeriodS: dur,
		Series: []rlcore.Use{{GPU: gpu, MemMiB: mem, Core: gpu}},
	}
}

func node(name string, gpus, cpus int) job.Node {
	return job.Node{
		Name: name, Up: true, GPUs: gpus, GPUType: "titanxp", Sharing: job.MPS,
		Units: 100 * gpus, Partitions: []string{"gpu"}, CPUs: cpus, MemMiB: 64000,
	}
}

func bridge(m *model, j loop.Journal) *loop.Bridge {
	return &loop.Bridge{
		Slurm: m, Apps: m, Journal: j, Mode: job.Active, Now: m.clock, PollEvery: 30 * time.Second,
		Specs: func(string) (rlcore.GPUSpec, bool) { return rlcore.TitanXp, true },
		Gate:  &loop.Gate{Slurm: m, Lease: time.Minute, Sharing: job.MPS, Now: m.clock},
		Planner: &plan.Planner{
			Decider: &rlcore.Decider{Policy: most{}, Guard: rlcore.NewGuard(rlcore.Rules{Predictor: fair{}}), M: 5},
		},
	}
}
