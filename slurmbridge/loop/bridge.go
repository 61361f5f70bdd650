package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Apps tells what is known of a job's application.
type Apps interface {
	// Identify names the application of a job from its owner, script and terms,
	// and looks its profile up. A nil Profile means that it isn't known.
	Identify(ctx context.Context, j *job.Job, t job.Terms, script []byte) (job.App, error)
}

// Journal keeps what must survive a restart, and what people ask about later.
type Journal interface {
	// Load returns the groups that were not done, and the waits.
	Load(ctx context.Context) (*Tracker, error)
	// SaveGroup writes a group down; its ID is its key.
	SaveGroup(ctx context.Context, g *job.Group) error
	// SaveBook writes down what of the book is not groups.
	SaveTracker(ctx context.Context, b *Tracker) error
	// Log records one applied (or, in shadow, intended) change and its outcome.
	Log(ctx context.Context, at time.Time, mode job.Mode, group int64, c *job.Change, outcome error) error
	// SaveNotes keeps the newest note of each job.
	SaveExplanations(ctx context.Context, notes map[string]*job.Explanation) error
	// SaveTasks keeps which array tasks run under which job numbers of their own:
	// that number is all that a node knows of a task.
	SaveTasks(ctx context.Context, at time.Time, tasks map[int64]string) error
}

// Ledger keeps what each look showed, for the receipt and the status page.
type Ledger interface {
	Enter(ctx context.Context, st *job.Status) error
}

// Bridge is the loop: look, plan, apply, again.
type Bridge struct {
	Slurm   job.Slurm
	Planner *Planner
	Gate    *Gate
	Apps    Apps
	Journal Journal
	Ledger  Ledger // nil = none
	// Runs and Beliefs let the bridge learn from runs; nil = it doesn't.
	Runs    history.Runs
	Beliefs history.Beliefs
	// RetryAlone lets a job that failed for having company run once more, alone.
	RetryAlone bool
	Card       Card
	Mode       job.Mode
	Log        *slog.Logger
	Metrics    *Metrics
	Now        func() time.Time
	// Poll is the longest time between two looks.
	PollEvery time.Duration
	// Settle is how long after an event the bridge looks, so that events that
	// come together are one look. Default 50 ms.
	Settle time.Duration
	// Fault is called between the steps of a look, for tests that kill the
	// bridge there; nil = none.
	Fault func(step string)

	tracker *Tracker
	loaded  bool
	wake    chan struct{}
	once    sync.Once
	apps    map[string]job.App
	tasks   map[int64]string // the array tasks that run, as they were written down
	learned learner
	// said is what jobs' AdminComments hold, by ref; notOurs holds the jobs where somebody else wrote one.
	said    map[string]string
	notOurs map[string]bool
	fails   int
	// maxDelay of any job so far, s.
	maxDelay float64
	status   atomic.Pointer[job.Status]
	policies atomic.Pointer[policies] // that the next look takes up; see Use
}

func (b *Bridge) init() {
	b.once.Do(func() {
		b.wake = make(chan struct{}, 1)
		b.apps = map[string]job.App{}
		if b.Now == nil {
			b.Now = time.Now
		}
		if b.Settle == 0 {
			b.Settle = 50 * time.Millisecond
		}
		if b.Log == nil {
			b.Log = slog.New(slog.DiscardHandler)
		}
	})
}

// Wake asks for a look soon. It never blocks.
func (b *Bridge) Wake() {
	b.init()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Status returns what the last look led to; nil before the first.
func (b *Bridge) Status() *job.Status { return b.status.Load() }

// Run looks, plans and applies until ctx ends. Failures are logged and counted;
// the gate's lease bounds what they can do. round is told of the end of each round.
func (b *Bridge) Run(ctx context.Context, round func(err error)) error {
	b.init()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-b.wake:
			if !sleep(ctx, b.Settle) {
				return ctx.Err()
			}
			select {
			case <-b.wake:
			default:
			}
		}
		next, err := b.Tick(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			b.fails++
			next = min(time.Second<<min(b.fails, 5), b.PollEvery)
			b.Log.Error("look failed", "err", err, "again_in", next)
		default:
			b.fails = 0
		}
		if round != nil {
			round(err)
		}
		if !timer.Stop() {
			select {
			case <-timer.C:
			default:
			}
		}
		timer.Reset(next)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (b *Bridge) fault(step string) {
	if b.Fault != nil {
		b.Fault(step)
	}
}

// Tick does one round and says when the next is due at the latest.
func (b *Bridge) Tick(ctx context.Context) (next time.Duration, err error) {
	b.init()
	b.takeUp()
	defer func() {
		if err != nil {
			b.Metrics.lookFailed()
			st := job.Status{}
			if old := b.status.Load(); old != nil {
				st = *old
			}
			st.Err = err.Error()
			st.Lease = b.left()
			b.status.Store(&st)
		}
	}()
	if !b.loaded {
		if b.tracker, err = b.Journal.Load(ctx); err != nil {
			// Without its memory the bridge starts empty: jobs that wait behind
			// the gate are still seen, prepared ones run as they are.
			b.Log.Error("journal can't be read; starting without it", "err", err)
			b.tracker = NewTracker()
		}
		b.loaded = true
	}
	b.fault("look")
	started := b.Now()
	snap, err := b.Slurm.Poll(ctx)
	if err != nil {
		return 0, fmt.Errorf("look: %w", err)
	}
	b.Metrics.looked(b.Now().Sub(started))
	snap.FillGPUs()
	b.fault("gate")
	if b.Mode == job.Active {
		if err := b.Gate.Keep(ctx, snap); err != nil {
			b.Metrics.gateFailed()
			b.Log.Error("gate", "err", err)
		}
	}
	facts := &PlanInput{Snap: snap, Ungated: b.Mode == job.Shadow, Card: b.Card, Tracker: b.tracker, Terms: map[string]job.Terms{}}
	if b.Mode == job.Active {
		facts.Gate = b.Gate.ID()
	}
	b.nameTasks(ctx, snap)
	b.account(snap)
	repairs, events := b.tracker.Observe(snap, facts.Gate)
	facts.Touched = touched(repairs)
	b.events(events)
	if err := b.judge(ctx, snap); err != nil {
		b.Log.Warn("runs not judged; the next look tries again", "err", err)
	}
	b.identify(ctx, facts)
	started = b.Now()
	plan := b.Planner.Plan(facts)
	plan.Repairs = append(repairs, plan.Repairs...)
	b.Metrics.planned(b.Now().Sub(started), plan)
	b.tracker.SetSlowdowns(plan.State, b.Planner.Decider.Guard.Predictor)
	b.fault("plan")
	b.apply(ctx, plan)
	b.tracker.LastAt = snap.At
	b.save(ctx, plan)
	b.publish(snap, plan, facts)
	if b.Ledger != nil {
		if err := b.Ledger.Enter(ctx, b.Status()); err != nil {
			b.Log.Error("journal", "err", err)
		}
	}
	b.say(ctx, plan, facts)
	return b.next(snap, plan), nil
}

// Preview looks and plans without applying, recording or keeping a gate: what the
// bridge would do now. It needs no running daemon and disturbs none.
func (b *Bridge) Preview(ctx context.Context) (*job.Status, error) {
	b.init()
	book, err := b.Journal.Load(ctx)
	if err != nil {
		return nil, err
	}
	b.tracker = book
	if b.Runs != nil && b.Beliefs != nil {
		if err := b.remember(ctx); err != nil {
			return nil, err
		}
	}
	snap, err := b.Slurm.Poll(ctx)
	if err != nil {
		return nil, fmt.Errorf("look: %w", err)
	}
	snap.FillGPUs()
	facts := &PlanInput{Snap: snap, Card: b.Card, Tracker: b.tracker, Terms: map[string]job.Terms{}, Ungated: b.Mode == job.Shadow}
	for _, g := range snap.Gates {
		if !g.Open {
			facts.Gate = g.ID
		}
	}
	repairs, _ := b.tracker.Observe(snap, facts.Gate)
	facts.Touched = touched(repairs)
	b.identify(ctx, facts)
	plan := b.Planner.Plan(facts)
	plan.Repairs = append(repairs, plan.Repairs...)
	b.publish(snap, plan, facts)
	return b.Status(), nil
}

func touched(repairs []job.Change) map[string]bool {
	out := map[string]bool{}
	for i := range repairs {
		for _, ref := range repairs[i].Update.Jobs {
			out[ref] = true
		}
	}
	return out
}

func (b *Bridge) left() time.Duration {
	if b.Mode != job.Active || b.Gate == nil {
		return 0
	}
	return b.Gate.Left()
}

// nameTasks writes down the array tasks that have begun to run since the last look.
func (b *Bridge) nameTasks(ctx context.Context, snap *job.Snapshot) {
	run, fresh := map[int64]string{}, map[int64]string{}
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.ArrayID == 0 || j.State == job.Pending {
			continue
		}
		if b.tasks[j.ID] != j.Ref {
			fresh[j.ID] = j.Ref
		}
		run[j.ID] = j.Ref
	}
	b.tasks = run
	if len(fresh) == 0 {
		return
	}
	if err := b.Journal.SaveTasks(ctx, snap.At, fresh); err != nil {
		b.Log.Error("journal", "err", err)
		for id := range fresh {
			delete(b.tasks, id) // the next look tries again
		}
	}
}

// account adds the time since the last look to the jobs that stood beside an
// idle GPU then.
func (b *Bridge) account(snap *job.Snapshot) {
	old := b.status.Load()
	if old == nil || old.Plan == nil || b.tracker.LastAt.IsZero() {
		return
	}
	dt := snap.At.Sub(b.tracker.LastAt).Seconds()
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if old.Plan.Idle[j.Ref] && j.State == job.Pending {
			b.tracker.Wait(j.Ref).DelayedS += max(0, dt)
			b.maxDelay = max(b.maxDelay, b.tracker.Wait(j.Ref).DelayedS)
			b.Metrics.delayed(b.tracker.Wait(j.Ref).DelayedS)
		}
	}
}

// identifyBudget bounds the time a look spends on finding out what jobs are.
const identifyBudget = 2 * time.Second

// identify looks up the applications of the jobs a plan may want: those that
// run, and the first of the queue. The rest follows in later looks.
func (b *Bridge) identify(ctx context.Context, f *PlanInput) {
	want := b.Planner.window()
	gpus := 0
	for i := range f.Snap.Nodes {
		gpus += f.Snap.Nodes[i].GPUs
	}
	want = want*(gpus+1) + 16
	f.Apps = make(map[string]job.App, len(f.Snap.Jobs))
	started := b.Now()
	seen := make(map[string]bool, len(f.Snap.Jobs))
	arrays := map[int64]job.App{}
	seats := b.tracker.seats()
	for i := range f.Snap.Jobs {
		j := &f.Snap.Jobs[i]
		seen[j.Ref] = true
		t := job.ParseTerms(j.Comment)
		if t.NoShare || t.MaxSlowdown > 0 || t.App != "" || t.ArrayOnly || len(t.Ignored) > 0 {
			f.Terms[j.Ref] = t
		}
		if j.Request.Kind == job.WholeGPU || j.Request.Kind == job.NoGPU {
			continue
		}
		if j.State == job.Pending && !f.Ungated && !f.behindGate(j) {
			if seats[j.Ref].group == nil {
				continue
			}
		}
		app, ok := b.apps[j.Ref]
		if !ok && j.ArrayID != 0 {
			// The tasks of an array have one script.
			app, ok = arrays[j.ArrayID]
		}
		if !ok || app.Profile == nil {
			if !ok && (want <= 0 || b.Now().Sub(started) > identifyBudget) {
				continue
			}
			want--
			app = b.lookUp(ctx, j, t, app)
			b.apps[j.Ref] = app
		}
		if j.ArrayID != 0 {
			arrays[j.ArrayID] = app
		}
		f.Apps[j.Ref] = app
	}
	for ref := range b.apps {
		if !seen[ref] {
			delete(b.apps, ref)
		}
	}
}

// lookUp finds a job's application. The script is read once; the profile is
// looked for again as long as there is none.
func (b *Bridge) lookUp(ctx context.Context, j *job.Job, t job.Terms, known job.App) job.App {
	var script []byte
	if known.Key == "" {
		var err error
		if script, err = b.Slurm.Script(ctx, j.Ref); err != nil {
			b.Log.Debug("no script", "job", j.Ref, "err", err)
		}
	}
	app, err := b.Apps.Identify(ctx, j, t, script)
	if err != nil {
		b.Log.Warn("application not identified", "job", j.Ref, "err", err)
	}
	return app
}

func (b *Bridge) events(events []Event) {
	for _, e := range events {
		b.Metrics.event(e)
		log := b.Log.Info
		if e.Kind == "stuck" || e.Kind == "partial" || e.Kind == "misplaced" {
			log = b.Log.Warn
		}
		log("job "+e.Kind, "job", e.Ref, "group", e.Group.ID, "node", e.Group.Node, "gpu", e.Group.GPU)
	}
}

// apply carries a plan out. A group is written down before its first change and
// again after its last, so that whoever finds it half made can put it back.
func (b *Bridge) apply(ctx context.Context, plan *job.Plan) {
	settled := true
	for _, c := range merge(plan.Repairs) {
		if err := b.change(ctx, 0, &c); err != nil && c.Step == "restore" {
			settled = false
		}
	}
	b.fault("repaired")
	for _, g := range b.tracker.Groups {
		g.Pushed = g.Pushed || plan.Pushed[g.ID] && b.Mode == job.Active
		for i := range g.Members {
			m := &g.Members[i]
			if m.Gone == "" && g.Kind == job.Next && b.Mode == job.Active && plan.Undone[m.Ref] {
				m.Undo, m.Tries = replanned, 1
			}
		}
	}
	if !settled {
		// A job that could not be taken back may be starting where a group was to
		// go: look again first.
		plan.Groups = nil
		return
	}
	for ref, n := range plan.Passed {
		b.tracker.Wait(ref).PassedOver += n
	}
	for i := range plan.Groups {
		plan.Groups[i].Group.ID = b.tracker.NextID
		b.tracker.NextID++
	}
	if b.Mode == job.Shadow {
		b.pretend(ctx, plan.Groups)
		return
	}
	b.releaseAll(ctx, plan.Groups)
}

// pretend writes down what would be done with the groups of a plan.
func (b *Bridge) pretend(ctx context.Context, groups []job.PlannedGroup) {
	for i := range groups {
		g := &groups[i]
		for k := range g.Changes {
			b.log(ctx, g.Group.ID, &g.Changes[k], nil)
		}
	}
}

// releaseAll makes the groups of a plan. Jobs that wait for some GPU already are put
// back behind the gate before anything is released: what comes to that GPU in their
// stead would start beside them if it became free in between. Where one of them can't
// be put back, it may have just started, and nothing goes to that GPU in this round.
func (b *Bridge) releaseAll(ctx context.Context, groups []job.PlannedGroup) {
	failed := map[job.GPUAddr]bool{}
	ready := make([]bool, len(groups))
	for i := range groups {
		g := &groups[i]
		if !g.Moves() {
			continue
		}
		if ready[i] = b.prepare(ctx, g); !ready[i] {
			for _, p := range g.Leaves {
				failed[p] = true
			}
		}
	}
	for i := range groups {
		g := &groups[i]
		if failed[job.GPUAddr{Node: g.Group.Node, GPU: g.Group.GPU}] {
			continue
		}
		if ready[i] || !g.Moves() && b.prepare(ctx, g) {
			b.release(ctx, g)
		}
	}
}

// prepare writes a group down and makes its members what they are to be when they
// start. It reports whether all of that was done; where it wasn't, the next look puts
// them back.
func (b *Bridge) prepare(ctx context.Context, p *job.PlannedGroup) bool {
	g := p.Group
	if err := b.Journal.SaveGroup(ctx, &g); err != nil {
		// A group nobody could put back after a crash is not made.
		b.Log.Error("journal", "err", err)
		return false
	}
	// From here on its members are in no other group. One that was skipped leaves
	// them where they were.
	for i := range g.Members {
		if _, m := b.tracker.member(g.Members[i].Ref); m != nil {
			m.Gone = "moved"
		}
	}
	b.tracker.Groups[g.ID] = &g
	b.fault("journaled")
	for _, c := range p.Prepares() {
		if b.change(ctx, g.ID, &c) != nil {
			return false
		}
		b.fault("prepare")
	}
	return true
}

// release lets a group go that was prepared.
func (b *Bridge) release(ctx context.Context, p *job.PlannedGroup) {
	g := b.tracker.Groups[p.Group.ID]
	if b.change(ctx, g.ID, p.Release()) != nil {
		return // still Preparing: the next look puts its members back
	}
	b.fault("release")
	g.State = job.Released
	p.Group.State = job.Released
	b.Metrics.released(g)
	b.Log.Info("group released", "group", g.ID, "kind", g.Kind, "node", g.Node, "gpu", g.GPU,
		"jobs", strings.Join(g.Refs(), ","), "after", strings.Join(g.After, ","))
	if err := b.Journal.SaveGroup(ctx, g); err != nil {
		b.Log.Error("journal", "err", err)
	}
}

// change applies one change and keeps it in the journal. In shadow it only does
// the latter.
func (b *Bridge) change(ctx context.Context, group int64, c *job.Change) error {
	var err error
	if b.Mode == job.Active {
		err = b.Slurm.Update(ctx, c.Update)
		b.Metrics.changed(c.Step, err)
		switch {
		case errors.Is(err, job.ErrNoJob):
			b.Log.Info("job is gone or running", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","))
		case err != nil:
			b.Log.Warn("change refused", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","), "err", err)
		}
	}
	b.log(ctx, group, c, err)
	return err
}

func (b *Bridge) log(ctx context.Context, group int64, c *job.Change, outcome error) {
	if err := b.Journal.Log(ctx, b.Now(), b.Mode, group, c, outcome); err != nil {
		b.Log.Error("journal", "err", err)
	}
}

// merge joins repairs that set the same values into one update each: a list of
// jobs costs slurmctld little more than one job.
func merge(changes []job.Change) []job.Change {
	var out []job.Change
	at := map[string]int{}
	for _, c := range changes {
		u := c.Update
		key := strings.Join([]string{c.Step, text(u.Gres), text(u.ReqNodes), text(u.Dependency), fmt.Sprint(u.StartNow)}, "\x00")
		i, ok := at[key]
		if !ok || len(out[i].Update.Jobs) >= 200 {
			at[key] = len(out)
			out = append(out, c)
			continue
		}
		out[i].Update.Jobs = append(out[i].Update.Jobs, u.Jobs...)
		for ref, was := range c.Was {
			out[i].Was[ref] = was
		}
	}
	return out
}

func text(s *string) string {
	if s == nil {
		return "\x01"
	}
	return *s
}

func (b *Bridge) save(ctx context.Context, plan *job.Plan) {
	for _, id := range b.tracker.groupIDs() {
		g := b.tracker.Groups[id]
		if err := b.Journal.SaveGroup(ctx, g); err != nil {
			b.Log.Error("journal", "err", err)
		}
		if g.State == job.Done {
			delete(b.tracker.Groups, id)
		}
	}
	if err := b.Journal.SaveTracker(ctx, b.tracker); err != nil {
		b.Log.Error("journal", "err", err)
	}
	if err := b.Journal.SaveExplanations(ctx, plan.Explanations); err != nil {
		b.Log.Error("journal", "err", err)
	}
}

func (b *Bridge) publish(snap *job.Snapshot, plan *job.Plan, f *PlanInput) {
	c := b.tracker.Clone()
	st := &job.Status{
		At: snap.At, Mode: b.Mode, Policy: b.Planner.Decider.Policy.Name(), Model: modelOf(b.Planner.Decider.Policy), Wanted: b.Planner.Wanted, Gate: f.Gate, Lease: b.left(),
		Snap: snap, Plan: plan, Explanations: plan.Explanations, Apps: f.Apps, LookOK: snap.At, Unmanaged: c.Unmanaged,
		MaxDelayS: b.maxDelay, Window: b.Planner.window(),
	}
	for _, id := range c.groupIDs() {
		st.Groups = append(st.Groups, *c.Groups[id])
	}
	for i := range snap.Jobs {
		if j := &snap.Jobs[i]; j.State == job.Pending && (f.behindGate(j) || j.Request.Kind == job.SharedGPU) {
			st.Waiting++
		}
	}
	b.status.Store(st)
	b.Metrics.state(st)
}

// next says when to look again if nothing happens: soon while something that was
// released has not started or is ending, otherwise at the poll, and always often
// enough for the gate.
func (b *Bridge) next(snap *job.Snapshot, plan *job.Plan) time.Duration {
	next := b.PollEvery
	if b.Mode == job.Active {
		next = min(next, b.Gate.Lease/3)
	}
	for _, g := range b.tracker.Groups {
		if g.State == job.Released && (g.Kind != job.Next || !g.Free.IsZero()) {
			next = min(next, time.Second)
		}
	}
	for i := range snap.Jobs {
		if snap.Jobs[i].State == job.Completing {
			next = min(next, 500*time.Millisecond)
		}
	}
	if len(plan.Repairs) > 0 && b.Mode == job.Active {
		next = min(next, time.Second)
	}
	return max(next, 100*time.Millisecond)
}

// LetGo frees every job at once: the gate is opened, and jobs prepared for a
// group that hasn't started get back what they had. It works without a running
// daemon and is what `slurmbridge open` does.
func LetGo(ctx context.Context, s job.Slurm, book *Tracker, gateFile string) (jobs int, err error) {
	if err := RemoveGateFile(gateFile); err != nil {
		return 0, err
	}
	snap, err := s.Poll(ctx)
	if err != nil {
		return 0, fmt.Errorf("look: %w", err)
	}
	facts := &PlanInput{Snap: snap, Tracker: book}
	pending := map[string]*job.Job{}
	for i := range snap.Jobs {
		if j := &snap.Jobs[i]; j.State == job.Pending {
			pending[j.Ref] = j
			if facts.behindGate(j) {
				jobs++
			}
		}
	}
	var errs []error
	for _, g := range book.Groups {
		for i := range g.Members {
			m := &g.Members[i]
			j := pending[m.Ref]
			if m.Gone != "" || j == nil || restored(g, m, j) {
				continue // over, running, or what it was before: nothing holds it but the gate
			}
			c := restore(g, m, j, "", "everything is let go")
			if err := s.Update(ctx, c.Update); err != nil && !errors.Is(err, job.ErrNoJob) {
				errs = append(errs, err)
			}
			if !facts.behindGate(j) {
				jobs++
			}
		}
	}
	for _, gate := range snap.Gates {
		if !gate.Open {
			errs = append(errs, s.OpenGate(ctx, gate.ID))
		}
	}
	return jobs, errors.Join(errs...)
}
