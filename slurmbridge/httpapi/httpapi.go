// Package httpapi serves metrics, health, web pages, and the bridge's state as JSON for the command line, all
// read-only. It shows as much as squeue: where Slurm hides jobs (PrivateData), users see only their own jobs, with a
// credential, and the number of others on each GPU.
package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"maps"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Server is the daemon's read side.
type Server struct {
	Status func() *job.Status
	Story  func(ctx context.Context, ref string) (*journal.Story, error)
	Groups func(ctx context.Context, since time.Time, limit int) ([]journal.Grouped, error)
	// Owner returns a job's user, "" = unknown.
	Owner func(ctx context.Context, ref string) (string, error)
	// TaskName names the job that ran under a number between two times, the number itself if that is no array task's.
	TaskName func(ctx context.Context, id int64, from, to time.Time) (string, error)
	// Asker identifies a request's user where jobs are private, Nodes a node that requests a memory limit; nil = none.
	Asker, Nodes *Asker
	// Memory returns the memory limit of a user's job; zero = none, or unknown.
	Memory func(ctx context.Context, ref, user string) (MemoryReport, error)
	// Fresh is the maximum age of the last successful poll for the bridge to be healthy.
	Fresh    time.Duration
	Now      func() time.Time
	Gatherer prometheus.Gatherer
	// Usage reports what GPUs were used for, or returns ErrNoUsage.
	Usage func(ctx context.Context, q usage.Query) (*usage.Report, error)
	// Profiles lists all profiles, or a user's own and the site's.
	Profiles func(ctx context.Context, user string, all bool) ([]store.Listed, error)
	// Runs returns the runs that a filter selects, for the status page; nil = it shows only the last poll.
	Runs func(ctx context.Context, f history.Filter) iter.Seq2[history.Run, error]
}

// api is a Server with its templates and cached answers.
type api struct {
	*Server
	started time.Time
	style   string // the pages' Content-Security-Policy, which allows only their style sheet
	pages   *template.Template
	runs    memo[[]history.Run] // by hours
	reports memo[*usage.Report] // by query
}

// Handler returns the routes. More can be added to the mux by the caller.
func (s *Server) Handler() *http.ServeMux {
	a := &api{
		Server: s, started: s.Now(),
		runs:    memo[[]history.Run]{now: s.Now, maxAge: readAgain, timeout: readWithin, size: len(hourSet)},
		reports: memo[*usage.Report]{now: s.Now, maxAge: answerFor, timeout: readWithin, size: mostAnswers},
	}
	a.pages, a.style = parsePages()
	mux := http.NewServeMux()
	// Requests about the present have their own turns, so that they never wait behind long reads of the database.
	now := newReaders()
	past := newReaders()
	past.sending = now.sending
	get := func(path string, r *readers, p parameters, h handler) {
		mux.HandleFunc("GET "+path, r.handle(a.answering(p, h)))
	}
	get("/{$}", now, pageParameters, a.statusPage)
	scrapes := newReaders()
	metrics := promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, req *http.Request) {
		scrapes.inTurn(scrapes.sending, w, req, func() { metrics.ServeHTTP(w, req) })
	})
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		if a.begins() {
			fmt.Fprintln(w, "starting")
			return
		}
		writeHealth(w, s.Health())
	})
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, s.Health()) })
	// Without turns, since the start of a job waits for the answer.
	memory := a.answering(parameters{"user": 1}, a.memory)
	mux.HandleFunc("GET "+MemoryPath, func(w http.ResponseWriter, req *http.Request) { memory(w, req).send(w) })
	get("/v1/status", now, nil, a.status)
	get("/v1/plan", now, nil, a.plan)
	get("/v1/why/{job}", past, nil, a.why)
	get(ProfilesPath, past, nil, a.profiles)
	get("/v1/groups", past, parameters{"since": 1}, a.groups)
	one := parameters{"since": 1, "until": 1, "by": 1, "account": mostNames}
	every := maps.Clone(one)
	every["user"] = mostNames
	get("/usage", past, parameters{"days": 1, "by": 1}, a.usagePage)
	get(UsagePath, past, every, a.allUsage)
	get(OwnUsagePath, past, one, a.ownUsage)
	get(IdlePath, now, nil, a.idle)
	return mux
}

// handler returns a page, any other value to encode as JSON, or a fault.
type handler func(w http.ResponseWriter, req *http.Request) (any, error)

// page is a template's name and the data that it shows.
type page struct {
	template string
	view     any
}

// fault is an error that the requester gets to read.
type fault struct {
	code int
	why  string
}

func (f fault) Error() string { return f.why }

func badRequest(format string, args ...any) error {
	return fault{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

var (
	errNotPolled = fault{http.StatusServiceUnavailable, "Slurm has not been polled yet"}
	errJournal   = fault{http.StatusInternalServerError, "the journal can't be read"}
	errDatabase  = fault{http.StatusInternalServerError, "the database can't be read"}
	errRef       = fault{http.StatusBadRequest, "a job's name is like 123 or 120_4"}
)

// answer is a complete response, made before any of it is sent.
type answer struct {
	code int
	text []byte
}

func (a answer) send(w http.ResponseWriter) {
	w.WriteHeader(a.code)
	_, _ = w.Write(a.text) // an error means that the client has gone
}

// answering runs a handler and encodes its result. Queries with parameters other than p are refused.
func (a *api) answering(p parameters, h handler) func(w http.ResponseWriter, req *http.Request) answer {
	return func(w http.ResponseWriter, req *http.Request) answer {
		var v any
		err := p.check(req.URL.RawQuery)
		if err == nil {
			v, err = h(w, req)
		}
		headers := map[string]string{"Content-Type": "application/json"}
		var b bytes.Buffer
		switch p, isPage := v.(page); {
		case err != nil:
		case isPage:
			headers = map[string]string{
				"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": a.style, "Cache-Control": "no-store",
				"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			}
			err = a.pages.ExecuteTemplate(&b, p.template, p.view)
		default:
			enc := json.NewEncoder(&b)
			enc.SetIndent("", "  ")
			err = enc.Encode(v)
		}
		code := http.StatusOK
		if err != nil {
			f := fault{http.StatusInternalServerError, "the answer can't be encoded"}
			errors.As(err, &f)
			code = f.code
			b = *bytes.NewBufferString(f.why + "\n")
			headers = map[string]string{"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
		}
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		return answer{code, b.Bytes()}
	}
}

// Health returns the bridge's present health.
func (s *Server) Health() job.Health { return s.Status().Health(s.Now(), s.Fresh) }

// begins reports whether the daemon has just started, and the first poll has not ended.
func (a *api) begins() bool { return a.Status() == nil && a.Now().Sub(a.started) <= a.Fresh }

// writeHealth writes the state of health and the reason, with status 503 while the bridge can't make jobs share.
func writeHealth(w http.ResponseWriter, h job.Health) {
	text := string(h.State)
	if h.Why != "" {
		text += ": " + h.Why
	}
	if h.State == job.Down {
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, text)
}
