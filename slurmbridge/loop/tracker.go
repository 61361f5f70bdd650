package loop

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Book is what the bridge remembers between looks: the groups it made and how
// long each job has waited because of it. Everything else is read from Slurm
// each time. It has one owner, the Bridge.
type Tracker struct {
	Groups map[int64]*job.Group
	Waits  map[string]*Wait
	// HandsOff holds the jobs whose owner edited what the bridge had set, and
	// those that did not start twice: they are ordinary jobs from then on.
	Unmanaged map[string]string
	// Done is the solo work each running job has done, by ref.
	Done map[string]*Progress
	// Endings holds what is to be known of jobs that ended until their records come,
	// by ref.
	Endings map[string]*Ended
	// faulted holds the GPUs whose MPS server failed under a job that has ended since,
	// as long as others compute there: nobody joins them, and the server is renewed
	// when the last has gone.
	faulted map[job.GPUAddr]bool
	// limits holds the classes of jobs of which Slurm starts no more for now, running
	// who ran at the last look, nil = there was none. Neither outlives the bridge:
	// what is released next tells again.
	limits  map[class]*limit
	running map[string]holder
	// LastAt is when the last look was, zero at the start.
	LastAt time.Time
	NextID int64
}

// Wait is how one pending job fared.
type Wait struct {
	PassedOver int     `json:"passed_over"`
	DelayedS   float64 `json:"delayed_s"`
	// Strikes counts the times it was released and did not start.
	Strikes int `json:"strikes"`
}

// Progress is how far one running job has come.
type Progress struct {
	Start time.Time
	DoneS float64
	Slow  float64 // the slowdown it is held to have at present, 1 = none
}

// Ended is a job that is no longer seen, or waits again.
type Ended struct {
	Gone time.Time // since when
	// Ending is how far it had come, nil = no look saw it run.
	Ending *history.Ending `json:",omitempty"`
	// Member it was, nil = of no group; Node and GPU are its group's.
	Member *job.Member `json:",omitempty"`
	Node   string      `json:",omitempty"`
	GPU    int         `json:",omitempty"`
}

// NewBook returns an empty book.
func NewTracker() *Tracker {
	return &Tracker{
		Groups:    map[int64]*job.Group{},
		Waits:     map[string]*Wait{},
		Unmanaged: map[string]string{},
		Done:      map[string]*Progress{},
		Endings:   map[string]*Ended{},
		faulted:   map[job.GPUAddr]bool{},
		limits:    map[class]*limit{},
		NextID:    1,
	}
}

// Wait returns the job's entry, made when there is none.
func (b *Tracker) Wait(ref string) *Wait {
	w := b.Waits[ref]
	if w == nil {
		w = &Wait{}
		b.Waits[ref] = w
	}
	return w
}

// groupIDs returns the groups' numbers in ascending order, so that a plan is the
// same whatever order a map has.
func (b *Tracker) groupIDs() []int64 { return slices.Sorted(maps.Keys(b.Groups)) }

// member finds the group that a job is in and still looked after by.
func (b *Tracker) member(ref string) (*job.Group, *job.Member) {
	// A job is in one group at most (see Observe), so the map's order is nothing.
	for _, g := range b.Groups {
		for i := range g.Members {
			if g.Members[i].Ref == ref && g.Members[i].Gone == "" {
				return g, &g.Members[i]
			}
		}
	}
	return nil, nil
}

// seat is a job's place in a group.
type seat struct {
	group  *job.Group
	member *job.Member
}

// seats finds the groups of all jobs at once, for who asks after many.
func (b *Tracker) seats() map[string]seat {
	out := map[string]seat{}
	for _, g := range b.Groups {
		for i := range g.Members {
			if m := &g.Members[i]; m.Gone == "" {
				out[m.Ref] = seat{g, m}
			}
		}
	}
	return out
}

// groupOf returns the group whose member the job is, nil = none.
func (b *Tracker) groupOf(ref string) *job.Group {
	g, _ := b.member(ref)
	return g
}

// Event is something a look showed that metrics and journal want to know.
type Event struct {
	Kind  string // "started", "ended", "requeued", "owner", "stuck", "partial", "regated", "misplaced", "limit"
	Group *job.Group
	Ref   string
}

// Grace is how long a released group may take to start before it is taken back.
const Grace = 45 * time.Second

// Observe brings the book up to date with a look, and returns the changes that
// put right what went another way than planned. gate is the gate that waiting
// jobs depend on ("" = none: jobs are then let go instead of gated again).
func (b *Tracker) Observe(s *job.Snapshot, gate string) (repairs []job.Change, events []Event) {
	jobs := make(map[string]*job.Job, len(s.Jobs))
	for i := range s.Jobs {
		jobs[s.Jobs[i].Ref] = &s.Jobs[i]
	}
	// A bridge that died while it moved a job from one group into another left it
	// in both: the later one counts.
	later := map[string]bool{}
	for _, id := range slices.Backward(b.groupIDs()) {
		g := b.Groups[id]
		for i := range g.Members {
			m := &g.Members[i]
			if m.Gone == "" && later[m.Ref] {
				m.Gone = "moved"
			}
			later[m.Ref] = later[m.Ref] || m.Gone == ""
		}
	}
	seats := b.seats()
	b.observeLimits(s, seats)
	await(s, seats)
	for _, id := range b.groupIDs() {
		g := b.Groups[id]
		r, e := b.observeGroup(g, jobs, s, gate)
		repairs = append(repairs, r...)
		events = append(events, e...)
		if len(g.Refs()) == 0 {
			g.State = job.Done
		}
	}
	b.progress(s, jobs)
	maps.DeleteFunc(b.faulted, func(p job.GPUAddr, _ bool) bool {
		return !slices.ContainsFunc(s.Jobs, func(j job.Job) bool {
			return j.State != job.Pending && j.Nodes == p.Node && (j.GPUs == nil || slices.Contains(j.GPUs, p.GPU))
		})
	})
	for ref := range b.Waits {
		if j := jobs[ref]; j == nil || j.State != job.Pending {
			delete(b.Waits, ref)
		}
	}
	for ref := range b.Unmanaged {
		if jobs[ref] == nil {
			delete(b.Unmanaged, ref)
		}
	}
	return repairs, events
}

// await notes which members other jobs wait for the end of. What the bridge itself
// has told to follow them doesn't count.
func await(s *job.Snapshot, seats map[string]seat) {
	if len(seats) == 0 {
		return
	}
	awaited := maps.Clone(s.Awaited)
	for i := range s.Jobs {
		j := &s.Jobs[i]
		follows := seats[j.Ref].group
		for _, d := range j.Dependency.List {
			if d.OnEnd() && (follows == nil || !slices.Contains(follows.After, d.Job)) {
				if awaited == nil {
					awaited = map[string]bool{}
				}
				awaited[d.Job] = true
			}
		}
	}
	for i := range s.Jobs {
		// Of one that is ending, those who waited may be gone already.
		j := &s.Jobs[i]
		if m := seats[j.Ref].member; m != nil && j.State != job.Completing {
			m.Awaited = awaited[j.Ref] || j.ArrayID != 0 && awaited[strconv.FormatInt(j.ArrayID, 10)]
		}
	}
}

func (b *Tracker) observeGroup(g *job.Group, jobs map[string]*job.Job, s *job.Snapshot, gate string) (repairs []job.Change, events []Event) {
	waiting, running := 0, 0
	// The first member that runs makes it Started, which says nothing of the others.
	preparing := g.State == job.Preparing
	for i := range g.Members {
		m := &g.Members[i]
		if m.Gone != "" {
			continue
		}
		j := jobs[m.Ref]
		switch {
		case j == nil:
			m.Gone = "ended"
			if !m.Ran {
				m.Gone = "cancelled" // or it started and ended between two looks
			}
			was := *m
			e := b.ending(m.Ref, s.At)
			e.Member, e.Node, e.GPU = &was, g.Node, g.GPU
			events = append(events, Event{Kind: "ended", Group: g, Ref: m.Ref})
		case j.State != job.Pending:
			running++
			if !m.Ran {
				m.Ran, m.Start = true, j.Start
				if g.State != job.Started {
					g.State = job.Started
				}
				events = append(events, Event{Kind: "started", Group: g, Ref: m.Ref})
			}
			if len(j.GPUs) == 1 && len(g.Members) > 1 && j.GPUs[0] != g.GPU && j.Nodes == g.Node {
				events = append(events, Event{Kind: "misplaced", Group: g, Ref: m.Ref})
			}
		case m.Undo != "":
			switch {
			case m.Tries > 0 && restored(g, m, j):
				m.Gone = "restored"
			case m.Tries >= 20:
				m.Gone = "restored"
				b.Unmanaged[m.Ref] = "Slurm does not let it be put back: " + m.Undo
			default:
				m.Tries++
				back := gate
				if m.Alone {
					back = ""
				}
				repairs = append(repairs, restore(g, m, j, back, m.Undo))
			}
		case m.Ran:
			// It ran and is pending again: requeued. Its next run is another one.
			m.Undo, m.Tries = "requeued", 1
			repairs = append(repairs, restore(g, m, j, gate, m.Undo))
			events = append(events, Event{Kind: "requeued", Group: g, Ref: m.Ref})
		case preparing:
			m.Undo, m.Tries = "prepared but never released", 1
			repairs = append(repairs, restore(g, m, j, gate, m.Undo))
		case j.Eligible.After(s.At.Add(5 * time.Second)):
			// It was to start at once and now has a time of its own: requeued
			// before a look saw it run, or its owner put it off.
			m.Undo, m.Tries = "put off", 1
			repairs = append(repairs, restore(g, m, j, gate, m.Undo))
			events = append(events, Event{Kind: "requeued", Group: g, Ref: m.Ref})
		case gate != "" && j.Dependency.Only("after", gate) && restored(g, m, j):
			m.Gone = "restored" // by a bridge that died before it wrote that down
		case !asPlanned(g, m, j):
			if b.Unmanaged[m.Ref] == "" {
				b.Unmanaged[m.Ref] = "its owner edited it"
				events = append(events, Event{Kind: "owner", Group: g, Ref: m.Ref})
			}
			if c, left := handBack(g, m, j); left && m.Tries < 20 {
				m.Tries++
				repairs = append(repairs, c)
			} else {
				m.Gone = "owner"
			}
		case j.Priority == 0:
			// Its owner, or an operator, holds it: nobody is to wait for it.
			m.Undo, m.Tries = "it is held", 1
			repairs = append(repairs, restore(g, m, j, gate, m.Undo))
		default:
			why, forever := b.surplus(j, g.Node, s.At)
			if why == "" {
				waiting++
				continue
			}
			back := gate
			if forever {
				back = ""
				b.Unmanaged[m.Ref] = "it is beyond " + why
			}
			m.Undo, m.Tries = why, 1
			repairs = append(repairs, restore(g, m, j, back, why))
			events = append(events, Event{Kind: "limit", Group: g, Ref: m.Ref})
		}
	}
	if waiting == 0 {
		return repairs, events
	}
	// Since when could the waiting members have started?
	blocked := false
	for _, ref := range g.After {
		if j := jobs[ref]; j != nil {
			blocked = true
		}
	}
	if blocked {
		return repairs, events
	}
	if g.Free.IsZero() {
		g.Free = s.At
	}
	// Somebody else's job may have taken the GPU by its priority: that is Slurm's
	// right and no sign that the group can't start.
	taken := false
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.State == job.Running && j.Nodes == g.Node && j.Request.Kind != job.NoGPU && j.Start.After(g.Free) &&
			slices.Contains(j.GPUs, g.GPU) && b.groupOf(j.Ref) != g {
			taken = true
		}
	}
	late := s.At.Sub(g.Free) > Grace
	if !late && !taken && nodeUp(s, g.Node) {
		return repairs, events
	}
	for i := range g.Members {
		m := &g.Members[i]
		j := jobs[m.Ref]
		if m.Gone != "" || m.Undo != "" || j == nil || j.State != job.Pending {
			continue
		}
		why := "did not start in time"
		switch {
		case taken:
			why = "another job took its GPU"
		case !late:
			why = "its node went out of service"
		}
		kind := "stuck"
		if running > 0 {
			kind = "partial"
		}
		w := b.Wait(m.Ref)
		if late && !taken { // a node's trouble is no fault of the job's
			w.Strikes++
		}
		m.Undo, m.Tries = why, 1
		if w.Strikes >= 2 {
			b.Unmanaged[m.Ref] = "it was released twice and did not start"
			repairs = append(repairs, restore(g, m, j, "", why+" again: left to Slurm"))
		} else {
			repairs = append(repairs, restore(g, m, j, gate, why))
		}
		events = append(events, Event{Kind: kind, Group: g, Ref: m.Ref})
	}
	return repairs, events
}

// asPlanned reports whether a released member that is still pending looks as the
// bridge left it. Conditions that were met in the meantime have left its list.
func asPlanned(g *job.Group, m *job.Member, j *job.Job) bool {
	if j.Request.Kind != job.Shares || j.Request.Count != m.Shares {
		return false
	}
	want := m.WasNodes
	if g.Pinned {
		want = g.Node
	}
	if j.ReqNodes != want {
		return false
	}
	for _, d := range j.Dependency.List {
		if d.Type != "afterany" || !slices.Contains(g.After, d.Job) {
			return false
		}
	}
	return true
}

// handBack is the change that takes back what the bridge had set in a job that its
// owner has edited since, and he has left as it was: the rest is his. false: there is
// nothing.
func handBack(g *job.Group, m *job.Member, j *job.Job) (job.Change, bool) {
	c := job.Change{Step: "restore", Why: "its owner edited it", Was: map[string]string{m.Ref: describe(j)}, Update: job.Update{Jobs: []string{m.Ref}}}
	if g.Pinned && j.ReqNodes == g.Node && m.WasNodes != g.Node {
		nodes := m.WasNodes
		c.Update.ReqNodes = &nodes
	}
	if j.Request.Kind == job.Shares && j.Request.Count == m.Shares && !sameGres(m.WasGres, j.Request) {
		gres := m.WasGres
		c.Update.Gres = &gres
	}
	return c, c.Update.ReqNodes != nil || c.Update.Gres != nil
}

// restore is the change that makes a job what it was before it was grouped. With
// a gate it waits for the bridge again, without one it is an ordinary job.
func restore(g *job.Group, m *job.Member, j *job.Job, gate, why string) job.Change {
	gres, nodes := m.WasGres, m.WasNodes
	c := job.Change{
		Step: "restore", Why: why,
		Was:    map[string]string{m.Ref: describe(j)},
		Update: job.Update{Jobs: []string{m.Ref}, Gres: &gres, ReqNodes: &nodes},
	}
	if !g.Pinned && j.ReqNodes == m.WasNodes {
		c.Update.ReqNodes = nil
	}
	dep := ""
	if gate != "" {
		dep = "after:" + gate
	} else {
		// The begin time of one that was requeued to run alone is Slurm's, two minutes on.
		c.Update.StartNow = startable(j) || m.Alone
	}
	c.Update.Dependency = &dep
	return c
}

// restored reports whether a look shows the job as it was before it was grouped.
// A gate that has opened since leaves it with no condition at all.
func restored(g *job.Group, m *job.Member, j *job.Job) bool {
	if !sameGres(m.WasGres, j.Request) || j.ReqNodes != m.WasNodes {
		return false
	}
	for _, ref := range g.After {
		if j.Dependency.Has("afterany", ref) {
			return false
		}
	}
	return true
}

// startable reports whether setting the begin time to now would take nothing
// from the owner: it has no later one of its own.
func startable(j *job.Job) bool { return j.Reason != "BeginTime" }

func nodeUp(s *job.Snapshot, name string) bool {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return s.Nodes[i].Up
		}
	}
	return false
}

// progress advances the running jobs' solo work: between two looks each did the
// time that passed divided by its slowdown in the group it was in.
func (b *Tracker) progress(s *job.Snapshot, jobs map[string]*job.Job) {
	for ref, p := range b.Done {
		if j := jobs[ref]; j == nil || j.State == job.Pending {
			if !b.LastAt.IsZero() {
				b.ending(ref, s.At).Ending = &history.Ending{Start: p.Start, At: b.LastAt, DoneS: p.DoneS, Slow: p.Slow}
			}
			delete(b.Done, ref)
		}
	}
	for ref, e := range b.Endings {
		if s.At.Sub(e.Gone) > recordsComeWithin {
			delete(b.Endings, ref)
		}
	}
	for ref, j := range jobs {
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		p := b.Done[ref]
		if p == nil || !p.Start.Equal(j.Start) {
			b.Done[ref] = &Progress{Start: j.Start, DoneS: max(0, s.At.Sub(j.Start).Seconds()), Slow: 1}
			continue
		}
		if j.State == job.Running && !b.LastAt.IsZero() {
			p.DoneS += max(0, s.At.Sub(b.LastAt).Seconds()) / max(p.Slow, 1)
		}
	}
}

// recordsComeWithin is how long after a job its record is waited for.
const recordsComeWithin = 2 * time.Hour

// ending returns the entry of a job that is no longer seen, made when there is none.
func (b *Tracker) ending(ref string, at time.Time) *Ended {
	e := b.Endings[ref]
	if e == nil {
		e = &Ended{Gone: at}
		b.Endings[ref] = e
	}
	return e
}

// SetSlowdowns takes over how fast the running jobs are held to go from now on,
// foreseen from who shares a GPU with whom and, where the predictor can tell, from
// how far each has come.
func (b *Tracker) SetSlowdowns(st *rlcore.State, p rlcore.Predictor) {
	var members []*rlcore.Profile
	var refs []string
	var at []float64
	for g := range st.GPUs {
		card := &st.GPUs[g]
		members, refs, at = members[:0], refs[:0], at[:0]
		for i := range card.Running {
			if r := &card.Running[i]; r.Profile != nil {
				members, refs, at = append(members, r.Profile), append(refs, r.ID), append(at, r.DoneS)
			}
		}
		pred := make([]rlcore.Prediction, len(members))
		pacer, knows := p.(rlcore.Pacer)
		switch {
		case len(members) > 1 && knows:
			pacer.Pace(pred, &card.Spec, members, at)
		case len(members) > 1 && p != nil:
			p.Predict(pred, &card.Spec, members)
		default:
			for i := range pred {
				pred[i].Slowdown = 1
			}
		}
		for i, ref := range refs {
			if pr := b.Done[ref]; pr != nil {
				pr.Slow = pred[i].Slowdown
			}
		}
	}
}

// Clone copies the book, for a plan that will not be applied.
func (b *Tracker) Clone() *Tracker {
	c := NewTracker()
	c.LastAt, c.NextID = b.LastAt, b.NextID
	for id, g := range b.Groups {
		gg := *g
		gg.Members = slices.Clone(g.Members)
		gg.After = slices.Clone(g.After)
		c.Groups[id] = &gg
	}
	for r, w := range b.Waits {
		ww := *w
		c.Waits[r] = &ww
	}
	maps.Copy(c.Unmanaged, b.Unmanaged)
	maps.Copy(c.faulted, b.faulted)
	for k, l := range b.limits {
		ll := *l
		c.limits[k] = &ll
	}
	c.running = maps.Clone(b.running)
	for r, p := range b.Done {
		pp := *p
		c.Done[r] = &pp
	}
	maps.Copy(c.Endings, b.Endings) // nobody changes one
	return c
}

// Card tells what a GPU type of gres.conf is; false = unknown, which keeps
// groups off it.
type Card func(gpuType string) (rlcore.GPUSpec, bool)
