// Package httpapi serves what the bridge knows: metrics, health, a status page for people, and its
// state as JSON for the command line. All of it is read-only. It shows what squeue shows: where
// Slurm hides jobs (PrivateData), users, accounts and applications are left out, and a job's
// details need its owner's credential.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// Server is the daemon's read side.
type Server struct {
	Status func() *job.Status
	Story  func(ctx context.Context, ref string) (*journal.Story, error)
	Groups func(ctx context.Context, since time.Time, limit int) ([]journal.Grouped, error)
	// Owner returns a job's user, "" = not known; nil = owners are never known.
	Owner func(ctx context.Context, ref string) (string, error)
	// Asker identifies a request's user where jobs are private; nil = there is no way to.
	Asker *Asker
	// Fresh is how old the last successful look may be for the bridge to be
	// healthy.
	Fresh    time.Duration
	Now      func() time.Time
	Gatherer prometheus.Gatherer
	// Usage sums up what GPUs were used for; nil = nothing is said of it. Returns ErrNoUsage.
	Usage func(ctx context.Context, q usage.Query) (*usage.Report, error)
	// Page is what the status page, at /, shows beyond the last look.
	Page Page
}

// mostScrapes is how many are answered with metrics at a time.
const mostScrapes = 8

// Handler returns the routes. More can be added to the mux by the caller.
func (s *Server) Handler() *http.ServeMux {
	started := s.Now()
	mux := http.NewServeMux()
	r := newReaders()
	pages := newPages(s)
	mux.HandleFunc("GET /{$}", r.handle(pages.ServeHTTP))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { s.healthy(w, started) })
	mux.HandleFunc("GET /-/ready", s.ready)
	mux.HandleFunc("GET /v1/status", r.handle(pages.status))
	mux.HandleFunc("GET /v1/plan", r.handle(s.plan))
	mux.HandleFunc("GET /v1/why/{job}", r.handle(s.why))
	mux.HandleFunc("GET /v1/groups", r.handle(s.groups))
	if s.Usage != nil {
		u := newUsages(s)
		mux.HandleFunc("GET /usage", r.handle(u.show))
		mux.HandleFunc("GET "+UsagePath, r.handle(u.all))
		mux.HandleFunc("GET "+OwnUsagePath, r.handle(u.own))
		mux.HandleFunc("GET "+IdlePath, r.handle(u.idle))
	}
	return mux
}

// Health says what is wrong with the bridge, nil = nothing: the last look is
// recent, and in active mode the gate is kept.
func (s *Server) Health() error {
	st := s.Status()
	switch {
	case st == nil:
		return errors.New("no look yet")
	case st.LookOK.IsZero():
		return fmt.Errorf("no look has succeeded yet: %s", st.Err)
	case s.Now().Sub(st.LookOK) > s.Fresh:
		why := st.Err
		if why == "" {
			why = "no other has come to an end since"
		}
		return fmt.Errorf("the last successful look was %s ago: %s", s.Now().Sub(st.LookOK).Round(time.Second), why)
	case st.Mode == job.Active && st.Gate == "":
		if st.GateErr != "" {
			return fmt.Errorf("there is no gate, shared jobs run alone: %s", st.GateErr)
		}
		return errors.New("there is no gate: shared jobs run alone")
	}
	return nil
}

func (s *Server) healthy(w http.ResponseWriter, started time.Time) {
	err := s.Health()
	if s.Status() == nil && s.Now().Sub(started) <= s.Fresh {
		err = nil // the first look is on its way
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "healthy")
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.Health(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// Report is the bridge's state as programs get it.
type Report struct {
	At        time.Time `json:"at"`
	Mode      string    `json:"mode"`
	Policy    string    `json:"policy"`
	Model     string    `json:"model,omitempty"`
	Objective string    `json:"objective,omitempty"`
	Slurm     string    `json:"slurm"`
	Gate      string    `json:"gate,omitempty"`
	// Standby names the daemon that decides in this one's place.
	Standby   string `json:"standby,omitempty"`
	GateError string `json:"gate_error,omitempty"` // what is wrong with the gate
	// Misread holds the fields of squeue's and scontrol's that say of the gate what isn't so.
	Misread   []job.Misread `json:"misread,omitempty"`
	LeaseLeft float64       `json:"lease_left_s"`
	Error     string        `json:"error,omitempty"`
	Waiting   int           `json:"waiting"`
	GPUs      []GPU         `json:"gpus"`
	Groups    []job.Group   `json:"groups"`
	// MaxDelayS is the longest that the bridge alone kept a job waiting, s.
	MaxDelayS float64 `json:"added_delay_max_s"`
	// Turn is how jobs ended in the last day against plain Slurm; nil = it can't be read.
	Turn     *history.Turn     `json:"turn,omitempty"`
	HandsOff map[string]string `json:"left_to_slurm,omitempty"`
}

// GPU is one GPU and the jobs on it.
type GPU struct {
	Node string `json:"node"`
	GPU  int    `json:"gpu"`
	Type string `json:"type"`
	Up   bool   `json:"up"`
	Jobs []Job  `json:"jobs"`
}

// Job is a running job as the report shows it.
type Job struct {
	Ref    string  `json:"job"`
	User   string  `json:"user"`
	App    string  `json:"app,omitempty"`
	Shares int     `json:"shares"` // 100 = the whole GPU
	For    float64 `json:"for_s"`
}

// MakeReport turns a status into what is shown of it.
func MakeReport(st *job.Status) *Report {
	r := &Report{
		At: st.At, Mode: string(st.Mode), Policy: st.Policy, Model: st.Model, Objective: st.Objective, Gate: st.Gate, Standby: st.Standby, GateError: st.GateErr, Misread: st.Misread, LeaseLeft: st.Lease.Seconds(),
		Error: st.Err, Waiting: st.Waiting, Groups: st.Groups, HandsOff: st.Unmanaged, MaxDelayS: st.MaxDelayS,
		GPUs: []GPU{},
	}
	if st.Snap == nil {
		return r
	}
	r.Slurm = st.Snap.Release
	on := map[gpuKey][]Job{}
	for k := range st.Snap.Jobs {
		j := &st.Snap.Jobs[k]
		if j.State == job.Pending {
			continue
		}
		shares := job.Units
		if j.Request.Kind == job.Shares {
			shares = j.Request.Count
		}
		for _, g := range j.GPUs {
			k := gpuKey{j.Nodes, g}
			on[k] = append(on[k], Job{
				Ref: j.Ref, User: j.User, App: st.Apps[j.Ref].Key, Shares: shares, For: st.Snap.At.Sub(j.Start).Seconds(),
			})
		}
	}
	for i := range st.Snap.Nodes {
		n := &st.Snap.Nodes[i]
		for g := range n.GPUs {
			gpu := GPU{Node: n.Name, GPU: g, Type: n.GPUType, Up: n.Up, Jobs: on[gpuKey{n.Name, g}]}
			if gpu.Jobs == nil {
				gpu.Jobs = []Job{}
			}
			r.GPUs = append(r.GPUs, gpu)
		}
	}
	return r
}

// turnHours is of how many hours the report says how jobs ended.
const turnHours = 24

func (p *pages) status(w http.ResponseWriter, req *http.Request) {
	st := public(p.server.Status())
	if st == nil {
		http.Error(w, "no look yet", http.StatusServiceUnavailable)
		return
	}
	r := MakeReport(st)
	r.Turn = p.turn(req.Context(), p.server.Now())
	reply(w, r)
}

// The queue positions are read again after this time, and the answer waits no longer than
// turnWithin for them.
const (
	turnFresh  = time.Minute
	turnWithin = 2 * time.Second
)

// lastTurn keeps the turn that was read last, nil = it couldn't be.
type lastTurn struct {
	mu   sync.Mutex
	at   time.Time
	last *history.Turn
}

// turn is how jobs ended in the last day against plain Slurm; nil = it can't be read in time.
func (p *pages) turn(ctx context.Context, now time.Time) *history.Turn {
	if p.server.Page.Outcomes == nil {
		return nil
	}
	t := &p.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if age := now.Sub(t.at); !t.at.IsZero() && age >= 0 && age < turnFresh {
		return t.last
	}
	ctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	all, err := p.server.Page.Outcomes(ctx, now.Add(-turnHours*time.Hour), mostRuns)
	if t.at, t.last = now, nil; err == nil {
		turn := history.CountTurn(pointers(all))
		t.last = &turn
	}
	return t.last
}

// PlanReport is the last plan as programs get it.
type PlanReport struct {
	At      time.Time `json:"at"`
	Mode    string    `json:"mode"`
	Changes []string  `json:"changes"`
}

func (s *Server) plan(w http.ResponseWriter, _ *http.Request) {
	st := s.Status()
	if st == nil || st.Plan == nil {
		http.Error(w, "no plan yet", http.StatusServiceUnavailable)
		return
	}
	reply(w, MakePlanReport(st))
}

// MakePlanReport turns a status into its plan.
func MakePlanReport(st *job.Status) *PlanReport {
	r := &PlanReport{At: st.At, Mode: string(st.Mode), Changes: []string{}}
	for _, c := range st.Plan.Changes() {
		r.Changes = append(r.Changes, c.Text())
	}
	return r
}

func (s *Server) why(w http.ResponseWriter, req *http.Request) {
	ref := req.PathValue("job")
	if !validRef(ref) {
		http.Error(w, "a job is named 123 or 120_4", http.StatusBadRequest)
		return
	}
	var waits *job.QueuePosition
	st := s.Status()
	private := s.private(st)
	if st != nil {
		waits = PositionOf(st, ref)
	}
	owner, all := "", true
	if private {
		owner = s.ownerOf(req.Context(), st, ref)
		may, everything, nobody := s.Asker.may(req, owner)
		if !may && owner == "" && nobody == nil {
			http.Error(w, "job "+ref+": the bridge has not seen it (yet)", http.StatusNotFound)
			return
		}
		if !may {
			s.refuse(w, ref, nobody)
			return
		}
		all = everything
	}
	story, err := s.Story(req.Context(), ref)
	switch {
	case errors.Is(err, journal.ErrNotFound) && waits != nil:
		story = &journal.Story{} // no decision has looked at it yet
	case errors.Is(err, journal.ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "the journal can't be read", http.StatusInternalServerError)
		return
	}
	story.Waits = waits
	if !all {
		leaveOthersOut(story, owner)
	}
	reply(w, story)
}

// refuse answers that a job belongs to another user, or why the request's user can't be identified.
func (s *Server) refuse(w http.ResponseWriter, ref string, nobody error) {
	if s.Asker != nil {
		w.Header().Set("WWW-Authenticate", s.Asker.Header)
	}
	text := "Slurm hides other users' jobs here (PrivateData), and so does the bridge: job " + ref +
		" is not yours, or there is no proof of your identity; slurmbridge why, called by its owner on a machine of the cluster, has one"
	if nobody != nil && !errors.Is(nobody, errNobody) {
		text += " (" + nobody.Error() + ")"
	}
	http.Error(w, text, http.StatusUnauthorized)
}

// private reports whether users see only their own jobs. Before the first poll it is not known.
func (s *Server) private(st *job.Status) bool {
	if st == nil || st.Snap == nil {
		return s.Asker != nil
	}
	return st.Snap.PrivateJobs
}

// ownerOf is a job's user, "" = not known.
func (s *Server) ownerOf(ctx context.Context, st *job.Status, ref string) string {
	if st != nil && st.Snap != nil {
		for i := range st.Snap.Jobs {
			if j := &st.Snap.Jobs[i]; j.Ref == ref {
				return j.User
			}
		}
	}
	if s.Owner == nil {
		return ""
	}
	owner, err := s.Owner(ctx, ref)
	if err != nil {
		return ""
	}
	return owner
}

// leaveOthersOut removes the names of a job's co-runners.
func leaveOthersOut(story *journal.Story, owner string) {
	for i := range story.Groups {
		for k := range story.Groups[i].Members {
			if m := &story.Groups[i].Members[k]; m.User != owner {
				m.User, m.App = "", ""
			}
		}
	}
	for i := range story.Outcomes {
		o := &story.Outcomes[i]
		o.WithApps, o.WithOwners, o.Blamed, o.Lesson, o.Suspect = nil, nil, nil, nil, ""
	}
}

// mostGroups is how many groups an answer holds.
const mostGroups = 1000

// moreHeader says that there are more groups, and from which time to request them.
const moreHeader = "Slurmbridge-More-Since"

// groups answers with the first of the groups decided since ?since= (RFC 3339; default:
// the last day).
func (s *Server) groups(w http.ResponseWriter, req *http.Request) {
	since := s.Now().Add(-24 * time.Hour)
	if v := req.URL.Query().Get("since"); v != "" {
		t, err := time.Parse(time.RFC3339, v)
		if err != nil {
			http.Error(w, "since takes a time like 2006-01-02T15:04:05Z", http.StatusBadRequest)
			return
		}
		since = t
	}
	groups, err := s.Groups(req.Context(), since, mostGroups+1)
	if err != nil {
		http.Error(w, "the journal can't be read", http.StatusInternalServerError)
		return
	}
	if len(groups) > mostGroups {
		w.Header().Set(moreHeader, groups[mostGroups].Decided.Format(time.RFC3339Nano))
		groups = groups[:mostGroups]
	}
	if s.private(s.Status()) {
		groups = hiddenGroups(groups)
	}
	reply(w, groups)
}

func validRef(ref string) bool {
	return ref != "" && len(ref) <= 32 && strings.Trim(ref, "0123456789_") == ""
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	// The reader may be gone: there is nowhere to report the error.
	_ = enc.Encode(v)
}
