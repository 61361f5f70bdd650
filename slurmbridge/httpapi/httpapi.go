// Package httpapi serves what the bridge knows: metrics, health, a status page for people, and its
// state as JSON for the command line. All of it is read-only. It shows what squeue shows: where
// Slurm hides jobs (PrivateData), a user sees no jobs but the user's own, with a credential, and how many others there
// are where.
package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slurmbridge/slurmbridge/prolog/turns"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Server is the daemon's read side.
type Server struct {
	Status func() *job.Status
	Story  func(ctx context.Context, ref string) (*journal.Story, error)
	Groups func(ctx context.Context, since time.Time, limit int) ([]journal.Grouped, error)
	// Owner returns a job's user, "" = not known; nil = owners are never known.
	Owner func(ctx context.Context, ref string) (string, error)
	// Asker identifies a request's user where jobs are private, Nodes the node that requests a memory limit; nil = there
	// is no way to.
	Asker, Nodes *Asker
	// Memory returns what a job of a user's is held to; nothing if it isn't, or isn't known.
	Memory func(ctx context.Context, ref, user string) (MemoryReport, error)
	// Fresh is how old the last successful look may be for the bridge to be
	// healthy.
	Fresh    time.Duration
	Now      func() time.Time
	Gatherer prometheus.Gatherer
	// Usage sums up what GPUs were used for; nil = nothing is said of it. Returns ErrNoUsage.
	Usage func(ctx context.Context, q usage.Query) (*usage.Report, error)
	// Runs are those that a filter selects, for the status page, at /; nil = it shows the last poll alone.
	Runs func(ctx context.Context, f history.Filter) iter.Seq2[history.Run, error]
}

// mostScrapes is how many are answered with metrics at a time.
const mostScrapes = 8

// Handler returns the routes. More can be added to the mux by the caller.
func (s *Server) Handler() *http.ServeMux {
	started := s.Now()
	mux := http.NewServeMux()
	// What is shown of now waits a moment at most for the database, and never behind those that read it.
	now, past := newReaders(), newReaders()
	past.sending = now.sending
	get := func(path string, r *readers, p parameters, h http.HandlerFunc) {
		mux.HandleFunc("GET "+path, r.handle(p.only(h)))
	}
	answers := func(path string, r *readers, p parameters, h handler) { get(path, r, p, data(h)) }
	pages := newPages(s)
	get("/{$}", now, pageParameters, pages.show)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { s.healthy(w, started) })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) { well(w, s.Health(), "ready") })
	if s.Memory != nil {
		mux.HandleFunc("GET "+MemoryPath, parameters{"user": 1}.only(data(s.memory)))
	}
	answers("/v1/status", now, nil, pages.status)
	answers("/v1/plan", now, nil, s.plan)
	answers("/v1/why/{job}", past, nil, s.why)
	answers("/v1/groups", past, parameters{"since": 1}, s.groups)
	if s.Usage != nil {
		one := parameters{"since": 1, "until": 1, "by": 1, "account": mostNames}
		every := maps.Clone(one)
		every["user"] = mostNames
		get("/usage", past, parameters{"days": 1, "by": 1}, pages.showUsage)
		answers(UsagePath, past, every, pages.allUsage)
		answers(OwnUsagePath, past, one, pages.ownUsage)
		answers(IdlePath, now, nil, pages.idle)
	}
	return mux
}

// handler answers with what programs read, or a fault.
type handler func(w http.ResponseWriter, req *http.Request) (any, error)

// fault is why a request isn't answered, in a sentence.
type fault struct {
	code int
	why  string
}

func (f fault) Error() string { return f.why }

var (
	errNotPolled = fault{http.StatusServiceUnavailable, "Slurm has not been polled yet"}
	errJournal   = fault{http.StatusInternalServerError, "the journal can't be read"}
	errRef       = fault{http.StatusBadRequest, "a job is named 123 or 120_4"}
)

// data sends what a handler answers, as JSON.
func data(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		v, err := h(w, req)
		if err != nil {
			f := fault{http.StatusInternalServerError, err.Error()}
			errors.As(err, &f)
			http.Error(w, f.why, f.code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		// The reader may be gone: there is nowhere to report the error.
		_ = enc.Encode(v)
	}
}

// Health says what is wrong with the bridge, nil = nothing: the last look is
// recent, and in active mode the gate is kept.
func (s *Server) Health() error {
	st := s.Status()
	switch {
	case st == nil:
		return errNotPolled
	case st.At.IsZero():
		return fmt.Errorf("no poll has succeeded yet: %s", st.Err)
	case s.Now().Sub(st.At) > s.Fresh:
		ago := s.Now().Sub(st.At).Round(time.Second)
		return fmt.Errorf("the last successful poll was %s ago: %s", ago, cmp.Or(st.Err, "no later one has ended"))
	case st.Mode == job.Active && st.Gate == "":
		return errors.New(strings.TrimSuffix("there is no gate, so shared jobs run alone: "+st.GateErr, ": "))
	}
	return nil
}

func (s *Server) healthy(w http.ResponseWriter, started time.Time) {
	if s.Status() == nil && s.Now().Sub(started) <= s.Fresh {
		well(w, nil, "healthy") // the first poll is on its way
		return
	}
	well(w, s.Health(), "healthy")
}

func well(w http.ResponseWriter, err error, word string) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, word)
}

// Report is the bridge's state as programs get it.
type Report struct {
	job.Status
	Slurm     string  `json:"slurm"`
	LeaseLeft float64 `json:"lease_left_s"`
	GPUs      []GPU   `json:"gpus"`
	// Turn is how jobs ended in the last day against plain Slurm; nil = it can't be read.
	Turn *history.Turn `json:"turn,omitempty"`
	// Seen is how many of the last day's jobs ran an application that was seen once; nil = it can't be read.
	Seen *history.Seen `json:"applications,omitempty"`
}

// GPU is one GPU and the jobs on it.
type GPU struct {
	Node string `json:"node"`
	GPU  int    `json:"gpu"`
	Type string `json:"type"`
	Up   bool   `json:"up"`
	// Faulted: no job joins those on it until they have ended, because its MPS server may be broken.
	Faulted bool  `json:"faulted,omitempty"`
	Jobs    []Job `json:"jobs"`
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
	r := &Report{Status: *st, LeaseLeft: st.Lease.Seconds(), GPUs: []GPU{}}
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
			gpu := GPU{
				Node: n.Name, GPU: g, Type: n.Card(g).Type, Up: n.Up, Jobs: on[gpuKey{n.Name, g}],
				Faulted: slices.Contains(st.Faulted, job.GPUAddr{Node: n.Name, GPU: g}),
			}
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

func (p *pages) status(w http.ResponseWriter, req *http.Request) (any, error) {
	st := p.Status()
	if st == nil {
		return nil, errNotPolled
	}
	r := MakeReport(newMask(p.viewer(w, req, p.private(st))).status(st))
	r.Turn, r.Seen = p.day(req.Context(), p.Now())
	return r, nil
}

// day is how jobs ended in the last day against plain Slurm, and how often their applications were seen; nil = it can't
// be read in time.
func (p *pages) day(ctx context.Context, now time.Time) (*history.Turn, *history.Seen) {
	h := p.past(ctx, now, turnHours)
	if p.Runs == nil || h.trouble != "" {
		return nil, nil
	}
	outcomes := history.Outcomes(h.runs)
	turn := history.CountTurn(outcomes)
	seen := history.CountSeen(len(outcomes), func(i int) (user, app string) { return outcomes[i].User, outcomes[i].App })
	return &turn, &seen
}

// PlanReport is the last plan as programs get it.
type PlanReport struct {
	At      time.Time `json:"at"`
	Mode    string    `json:"mode"`
	Changes []string  `json:"changes"`
}

func (s *Server) plan(w http.ResponseWriter, req *http.Request) (any, error) {
	st := s.Status()
	if st == nil || st.Plan == nil {
		return nil, fault{http.StatusServiceUnavailable, "no plan yet"}
	}
	if !s.viewer(w, req, s.private(st)).all {
		why := "a plan names jobs, and " + hides + ": the request needs an operator's credential"
		return nil, fault{http.StatusUnauthorized, why}
	}
	return MakePlanReport(st), nil
}

// hides says why others' jobs aren't shown.
const hides = "Slurm hides other users' jobs here (PrivateData), and so does the bridge"

// MakePlanReport turns a status into its plan.
func MakePlanReport(st *job.Status) *PlanReport {
	r := &PlanReport{At: st.At, Mode: string(st.Mode), Changes: []string{}}
	for _, c := range st.Plan.Changes() {
		r.Changes = append(r.Changes, c.Text())
	}
	return r
}

func (s *Server) why(w http.ResponseWriter, req *http.Request) (any, error) {
	ref := req.PathValue("job")
	if !validRef(ref) {
		return nil, errRef
	}
	st := s.Status()
	var waits *job.QueuePosition
	var on *job.Place
	if st != nil && st.Snap != nil {
		waits, on = PositionOf(st, ref), st.Snap.PlaceOf(ref)
	}
	who := s.viewer(w, req, s.private(st))
	if who.err != nil {
		why := hides + ": there is no proof that job " + ref +
			" is yours; slurmbridge why, called by its owner on a machine of the cluster, has one"
		if !errors.Is(who.err, errNobody) {
			why += " (" + who.err.Error() + ")"
		}
		return nil, fault{http.StatusUnauthorized, why}
	}
	if !who.all {
		if owner := s.ownerOf(req.Context(), st, ref); owner == "" || owner != who.user {
			// One answer for both: which numbers others' jobs have is hidden, too.
			return nil, fault{http.StatusNotFound, "job " + ref + " is not yours, or the bridge has not seen it (yet): " + hides}
		}
	}
	story, err := s.Story(req.Context(), ref)
	switch {
	case errors.Is(err, journal.ErrNotFound) && (waits != nil || on != nil):
		story = &journal.Story{} // no decision has considered it yet
	case errors.Is(err, journal.ErrNotFound):
		return nil, fault{http.StatusNotFound, notOurs(st, ref)}
	case err != nil:
		return nil, errJournal
	}
	story.Waits, story.On = waits, on
	if st != nil {
		story.Unmanaged = st.Unmanaged[ref]
	}
	m := newMask(who)
	m.noteOwners(st)
	m.story(story, ref)
	return story, nil
}

// notOurs says why nothing is known of a job.
func notOurs(st *job.Status, ref string) string {
	of := func(j job.Job) bool { return j.Ref == ref }
	if st != nil && st.Snap != nil && slices.ContainsFunc(st.Snap.Jobs, of) {
		return "job " + ref +
			" doesn't ask to share a GPU: Slurm alone decides when it starts, as if the bridge weren't there"
	}
	return "nothing is known of job " + ref + ": it has asked for no GPU, is too new or too old, or there is none"
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

// mostGroups is how many groups an answer holds.
const mostGroups = 1000

// moreHeader says that there are more groups, and from which time to request them.
const moreHeader = "Slurmbridge-More-Since"

// groups answers with the first of the groups decided since ?since= (RFC 3339; default:
// the last day).
func (s *Server) groups(w http.ResponseWriter, req *http.Request) (any, error) {
	since := s.Now().Add(-24 * time.Hour)
	if err := readTime(req.URL.Query(), "since", &since); err != nil {
		return nil, err
	}
	groups, err := s.Groups(req.Context(), since, mostGroups+1)
	if err != nil {
		return nil, errJournal
	}
	if len(groups) > mostGroups {
		w.Header().Set(moreHeader, groups[mostGroups].Decided.Format(time.RFC3339Nano))
		groups = groups[:mostGroups]
	}
	m := newMask(s.viewer(w, req, s.private(s.Status())))
	for i := range groups {
		groups[i].Group = m.group(groups[i].Group)
	}
	return groups, nil
}

// readTime reads a parameter, if it is given.
func readTime(q url.Values, name string, into *time.Time) error {
	v := q.Get(name)
	if v == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		return fault{http.StatusBadRequest, name + " takes a time like 2006-01-02T15:04:05Z"}
	}
	*into = t
	return nil
}

func validRef(ref string) bool {
	return ref != "" && len(ref) <= 32 && strings.Trim(ref, "0123456789_") == ""
}

// bounds are what readers may take of the daemon.
type bounds struct {
	// conns and ofHost are how many connections are open in all and from one host.
	conns, ofHost int
	// write is how long an answer may take, from the request's end to its last byte.
	write time.Duration
}

var usual = bounds{conns: 4096, ofHost: 256, write: time.Minute}

// NewServer returns an HTTP server with bounds: connections are counted by host, and each has a
// limited time to send its request and to read the answer.
func NewServer(h http.Handler) *http.Server { return usual.server(h) }

func (b bounds) server(h http.Handler) *http.Server {
	c := &counted{bounds: b}
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: b.write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ConnState: c.state,
	}
}

// counted are the open connections, in the order in which they came. At the limit, the oldest connection of the host
// with the most gives way, so a short request still gets through next to connections from the same machine that stay
// open.
type counted struct {
	bounds
	mu   sync.Mutex
	open []connection
}

type connection struct {
	net.Conn
	host string
}

func (c *counted) state(conn net.Conn, s http.ConnState) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return // a socket of this machine
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateNew:
		c.open = append(c.open, connection{conn, host})
		c.shed(host)
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, func(o connection) bool { return o.Conn == conn })
	}
}

// shed closes the oldest connection of a host that has too many, or if there are too many of the host with the most.
func (c *counted) shed(host string) {
	of := map[string]int{}
	for _, o := range c.open {
		of[o.host]++
	}
	if of[host] <= c.ofHost {
		if len(c.open) <= c.conns {
			return
		}
		host = slices.MaxFunc(slices.Collect(maps.Keys(of)), func(a, b string) int { return of[a] - of[b] })
	}
	oldest := slices.IndexFunc(c.open, func(o connection) bool { return o.host == host })
	_ = c.open[oldest].Close()
	c.open = slices.Delete(c.open, oldest, oldest+1)
}

// readers bounds what requests take that read the database or return much: few answers are made, and not many sent to
// readers that may be slow, at a time, a part of them for one host.
type readers struct {
	making, sending *turns.Turns
	wait            time.Duration // for a turn
}

func newReaders() *readers {
	return &readers{making: turns.New(4, 2), sending: turns.New(32, 8), wait: 5 * time.Second}
}

// answer is one that is made before its reader gets any of it.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = cmp.Or(a.code, code) }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// handle lets h answer in its turn, and says 503 where that doesn't come or too much is on its
// way already.
func (r *readers) handle(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		host, _, _ := net.SplitHostPort(req.RemoteAddr)
		enter := func(t *turns.Turns) (leave func(), err error) {
			ctx, cancel := context.WithTimeout(req.Context(), r.wait)
			defer cancel()
			return t.Enter(ctx, host)
		}
		made, err := enter(r.making)
		if err != nil {
			tooMany(w)
			return
		}
		a := &answer{header: w.Header()}
		sent, err := func() (func(), error) {
			defer made()
			h(a, req)
			return enter(r.sending)
		}()
		if err != nil {
			tooMany(w)
			return
		}
		defer sent()
		w.WriteHeader(cmp.Or(a.code, http.StatusOK))
		// The reader may be gone: there is nowhere to report the error.
		_, _ = w.Write(a.body.Bytes())
	}
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "10")
	http.Error(w, "too many are reading at once: try again in a while", http.StatusServiceUnavailable)
}
