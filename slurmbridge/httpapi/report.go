package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Report is the bridge's state for programs.
type Report struct {
	job.Status
	Health    job.Health `json:"health"`
	Slurm     string     `json:"slurm"`
	LeaseLeft float64    `json:"lease_left_s"`
	GPUs      []GPU      `json:"gpus"`
	// Turn compares the last day's turnaround with plain Slurm; nil = it can't be read.
	Turn *history.Turn `json:"turn,omitempty"`
	// Seen is how many of the last day's jobs ran an application that was seen once; nil = it can't be read.
	Seen *history.OneTimers `json:"applications,omitempty"`
}

// GPU is one GPU and the jobs on it.
type GPU struct {
	Node string `json:"node"`
	GPU  int    `json:"gpu"`
	Type string `json:"type"`
	Up   bool   `json:"up"`
	// Faulted: the GPU's MPS server may be broken, so no job joins until the present jobs have ended.
	Faulted bool     `json:"faulted,omitempty"`
	Jobs    []GPUJob `json:"jobs"`
}

// Uses counts GPUs by the number of their jobs.
type Uses struct {
	Shared, Single, Idle, Down int // with several jobs, with one, with none, out of service
	Sharers                    int // jobs that share a GPU
}

// CountUses counts GPUs by the number of their jobs.
func CountUses(gpus []GPU) (c Uses) {
	for i := range gpus {
		n := len(gpus[i].Jobs)
		switch {
		case !gpus[i].Up:
			c.Down++
		case n == 0:
			c.Idle++
		case n == 1:
			c.Single++
		default:
			c.Shared++
			c.Sharers += n
		}
	}
	return c
}

// GPUJob is a running job in the report.
type GPUJob struct {
	Ref    string  `json:"job"`
	User   string  `json:"user"`
	App    string  `json:"app,omitempty"`
	Shares int     `json:"shares"` // 100 = the whole GPU
	For    float64 `json:"for_s"`
}

// gpusOf returns the GPUs of the last poll, with their jobs as the viewer may see them.
func gpusOf(st *job.Status, m *mask) []GPU {
	out := []GPU{}
	if st.Snap == nil {
		return out
	}
	on := map[job.GPUAddr][]GPUJob{}
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State == job.Pending {
			continue
		}
		shown := GPUJob{Ref: m.ref(j.Ref), Shares: job.Units, For: st.Snap.At.Sub(j.Start).Seconds()}
		if j.Request.Kind == job.Shares {
			shown.Shares = j.Request.Count
		}
		if m.owns(j.User) {
			shown.User = j.User
			shown.App = st.Apps[j.Ref].Key
		}
		for _, at := range j.Holds() {
			on[at] = append(on[at], shown)
		}
	}
	for i := range st.Snap.Nodes {
		n := &st.Snap.Nodes[i]
		for g := range n.GPUs {
			at := job.GPUAddr{Node: n.Name, GPU: g}
			out = append(out, GPU{
				Node: n.Name, GPU: g, Type: n.GPU(g).Type, Up: n.Up, Faulted: slices.Contains(st.Faulted, at),
				Jobs: append([]GPUJob{}, on[at]...),
			})
		}
	}
	return out
}

// turnHours is the period of Report.Turn, in hours.
const turnHours = 24

func (a *api) status(w http.ResponseWriter, req *http.Request) (any, error) {
	st := a.Status()
	if st == nil {
		return nil, errNotPolled
	}
	m := newMask(a.viewer(w, req, a.private(st)), st)
	r := &Report{Status: m.status(st), Health: a.Health(), LeaseLeft: st.Lease.Seconds(), GPUs: gpusOf(st, m)}
	if st.Snap != nil {
		r.Slurm = st.Snap.Release
	}
	if runs, trouble := a.past(req.Context(), a.Now(), turnHours); a.Runs != nil && trouble == "" {
		turn, seen := history.CountTurn(runs), history.CountOneTimers(runs)
		turn.Of = m.ref(turn.Of)
		r.Turn, r.Seen = &turn, &seen
	}
	return r, nil
}

// PlanReport is the last plan for programs.
type PlanReport struct {
	At      time.Time `json:"at"`
	Mode    string    `json:"mode"`
	Changes []string  `json:"changes"`
}

func (a *api) plan(w http.ResponseWriter, req *http.Request) (any, error) {
	st := a.Status()
	if st == nil || st.Plan == nil {
		return nil, fault{http.StatusServiceUnavailable, "no plan yet"}
	}
	if !a.viewer(w, req, a.private(st)).all {
		why := "a plan names jobs, and " + hides + ": the request needs an operator's credential"
		return nil, fault{http.StatusUnauthorized, why}
	}
	return MakePlanReport(st), nil
}

// hides is the reason for not showing other users' jobs.
const hides = "Slurm hides other users' jobs here (PrivateData), and so does the bridge"

// MakePlanReport returns the plan of a status.
func MakePlanReport(st *job.Status) *PlanReport {
	r := &PlanReport{At: st.At, Mode: string(st.Mode), Changes: []string{}}
	for _, c := range st.Plan.Changes() {
		r.Changes = append(r.Changes, c.Text())
	}
	return r
}

func (a *api) why(w http.ResponseWriter, req *http.Request) (any, error) {
	asked := req.PathValue("job")
	if !text.ValidRef(asked) {
		return nil, errRef
	}
	st := a.Status()
	if st == nil {
		st = &job.Status{}
	}
	snap := st.Snap
	if snap == nil {
		snap = &job.Snapshot{}
	}
	ref, own, err := a.find(req.Context(), snap, asked)
	if err != nil {
		return nil, errJournal
	}
	who := a.viewer(w, req, a.private(st))
	switch {
	case who.err != nil:
		why := hides + ": there is no proof that job " + asked +
			" is yours; slurmbridge why, called by its owner on a machine of the cluster, has one"
		if !errors.Is(who.err, errNobody) {
			why += " (" + who.err.Error() + ")"
		}
		return nil, fault{http.StatusUnauthorized, why}
	case !who.all && !a.isOf(req.Context(), who.user, ref, own):
		// Both cases get the same answer, since other users' job numbers are hidden, too.
		return nil, fault{http.StatusNotFound, "job " + asked + " is not yours, or the bridge has not seen it (yet): " +
			hides}
	}
	waits := PositionOf(st, ref)
	on := snap.PlaceOf(ref)
	story, err := a.Story(req.Context(), ref)
	missing := errors.Is(err, journal.ErrNotFound)
	switch {
	case missing && (waits != nil || on != nil):
		story = &journal.Story{} // no decision has considered it yet
	case missing && own != nil:
		return nil, fault{http.StatusNotFound, "job " + ref +
			" doesn't ask to share a GPU: Slurm alone decides when it starts, as if the bridge weren't there"}
	case missing:
		return nil, fault{http.StatusNotFound, "nothing is known of job " + ref +
			": it has asked for no GPU, is too new or too old, or there is none"}
	case err != nil:
		return nil, errJournal
	}
	story.Ref = ref
	story.Waits = waits
	story.On = on
	story.Unmanaged = st.Unmanaged[ref]
	if own != nil {
		story.State = own.State
	}
	newMask(who, st).story(story, ref)
	return story, nil
}

// find returns the name of a job, and the job in the last poll, nil = not there. An array task may be asked for by its
// own number, as sacct's JobIDRaw has it.
func (s *Server) find(ctx context.Context, snap *job.Snapshot, asked string) (ref string, own *job.Job, err error) {
	id, isNumber := strconv.ParseInt(asked, 10, 64)
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.Ref == asked || isNumber == nil && j.ID == id {
			return j.Ref, j, nil
		}
	}
	if isNumber == nil {
		asked, err = s.TaskName(ctx, id, time.Time{}, s.Now())
	}
	return asked, nil, err
}

// private reports whether users see only their own jobs. Before the first poll it is not known.
func (s *Server) private(st *job.Status) bool {
	if st == nil || st.Snap == nil {
		return s.Asker != nil
	}
	return st.Snap.PrivateJobs
}

// isOf reports whether a job is known to be a user's. own is the job in the last poll, nil = not there.
func (s *Server) isOf(ctx context.Context, user, ref string, own *job.Job) bool {
	owner := ""
	if own != nil {
		owner = own.User
	} else if known, err := s.Owner(ctx, ref); err == nil {
		owner = known
	}
	return owner != "" && owner == user
}

// mostGroups is the maximum number of groups in an answer.
const mostGroups = 1000

// moreHeader is set if there are more groups, to the time since which to request them.
const moreHeader = "Slurmbridge-More-Since"

// groups serves the first of the groups decided since ?since= (RFC 3339; default: the last day).
func (a *api) groups(w http.ResponseWriter, req *http.Request) (any, error) {
	since := a.Now().Add(-24 * time.Hour)
	if err := readTime(req.URL.Query(), "since", &since); err != nil {
		return nil, err
	}
	groups, err := a.Groups(req.Context(), since, mostGroups+1)
	if err != nil {
		return nil, errJournal
	}
	if len(groups) > mostGroups {
		w.Header().Set(moreHeader, groups[mostGroups].Decided.Format(time.RFC3339Nano))
		groups = groups[:mostGroups]
	}
	st := a.Status()
	m := newMask(a.viewer(w, req, a.private(st)), nil)
	for i := range groups {
		groups[i].Group = m.group(groups[i].Group)
	}
	return groups, nil
}

func readTime(q url.Values, name string, into *time.Time) error {
	v := q.Get(name)
	if v == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		return badRequest("%s takes a time like 2006-01-02T15:04:05Z", name)
	}
	*into = t
	return nil
}

// PositionOf returns a pending job's place in the queue, from the last poll, or why a rule that matches the job doesn't
// make it share; nil = the job doesn't wait for the bridge.
func PositionOf(st *job.Status, ref string) *job.QueuePosition {
	if st.Snap == nil {
		return nil
	}
	last := st.Plan
	if last == nil {
		last = &job.Plan{}
	}
	in := &plan.Input{Snap: st.Snap, Shadow: st.Mode == job.Shadow}
	besides := func(j *job.Job) string { return cmp.Or(in.WaitsBesides(j), last.Limited[j.Ref]) }
	sent := sentTo(st)
	var queue []*job.Job
	var found *job.Job
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State != job.Pending || sent[j.Ref] != nil || !in.WaitsForBridge(j) ||
			j.Request.Kind != job.Shares && !release.Behind(in.Snap.Gates, j) {
			continue
		}
		if j.Ref == ref {
			found = j
		}
		if besides(j) == "" {
			queue = append(queue, j)
		}
	}
	why := last.NotAdopted[ref]
	switch {
	case found == nil && why != "":
		return &job.QueuePosition{At: st.At, NotAdopted: why.String()}
	case found == nil:
		return nil
	}
	slices.SortFunc(queue, plan.ByPriority)
	return &job.QueuePosition{
		ExpectedStart: last.Starts[ref], At: st.At, Gate: st.Gate, LeaseLeftS: st.Lease.Seconds(), Window: st.Window,
		Holds: besides(found), Position: slices.Index(queue, found) + 1, Of: len(queue),
	}
}

// sentTo returns the groups of the jobs that were sent to a GPU, including by the plan after the poll.
func sentTo(st *job.Status) map[string]*job.Group {
	sent := map[string]*job.Group{}
	for i := range st.Groups {
		for _, ref := range st.Groups[i].Refs() {
			sent[ref] = &st.Groups[i]
		}
	}
	return sent
}
