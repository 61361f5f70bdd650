package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

//go:embed *.html
var sources embed.FS

//go:embed page.css
var pageCSS string

// Limits of what a page shows, independent of its query.
const (
	mostGPUs   = 100
	mostJobs   = 500
	mostRuns   = 20_000 // that are read of the past
	mostPoints = 400    // runs in the picture of slowdowns
)

// hourSet are the lengths of the past that pages show, hours: however many readers there are, the past is read so often
// at most.
var hourSet = []int{1, 6, 24, 72}

// options are the parameters of the status page.
type options struct {
	Hours, GPUs, Skip, Jobs int
	Refresh                 int // s; 0 = never
}

// pageParameters are those of readOptions.
var pageParameters = parameters{"hours": 1, "gpus": 1, "skip": 1, "jobs": 1, "refresh": 1}

func readOptions(q url.Values) (options, error) {
	o := options{Hours: 6, GPUs: 24, Jobs: 40, Refresh: 30}
	err := cmp.Or(readNumber(q, "hours", &o.Hours, 1, slices.Max(hourSet)), readNumber(q, "gpus", &o.GPUs, 1, mostGPUs),
		readNumber(q, "skip", &o.Skip, 0, 1_000_000), readNumber(q, "jobs", &o.Jobs, 1, mostJobs),
		readNumber(q, "refresh", &o.Refresh, 0, 86_400))
	if err == nil && !slices.Contains(hourSet, o.Hours) {
		err = fmt.Errorf("hours takes a number of %v", hourSet)
	}
	if o.Refresh > 0 {
		o.Refresh = max(o.Refresh, 5)
	}
	return o, err
}

// readNumber reads a parameter, if it is given.
func readNumber(q url.Values, name string, into *int, low, top int) error {
	v := q.Get(name)
	if v == "" {
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > top {
		return fmt.Errorf("%s takes a number from %d to %d", name, low, top)
	}
	*into = n
	return nil
}

// With returns the address of the same page with one option changed.
func (o options) With(name string, value int) string {
	all := map[string]int{"hours": o.Hours, "gpus": o.GPUs, "skip": o.Skip, "jobs": o.Jobs, "refresh": o.Refresh}
	all[name] = value
	q := url.Values{}
	for k, v := range all {
		q.Set(k, strconv.Itoa(v))
	}
	return "?" + q.Encode()
}

// pages are what people look at, and what of it is read from the database.
type pages struct {
	*Server
	began   time.Time
	policy  string // Content-Security-Policy: the style sheet, and nothing else
	tmpl    *template.Template
	read    memo[past]          // by the hours
	reports memo[*usage.Report] // by query
}

func newPages(s *Server) *pages {
	css := chart.CSS + pageCSS
	sum := sha256.Sum256([]byte(css))
	pos := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	percent := func(part float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*part)+0) }
	return &pages{
		Server: s, began: s.Now(),
		read:    memo[past]{now: s.Now, fresh: readAgain, within: readWithin, most: len(hourSet)},
		reports: memo[*usage.Report]{now: s.Now, fresh: answerFor, within: readWithin, most: mostAnswers},
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		tmpl: template.Must(template.New("").Funcs(template.FuncMap{
			"css":   func() template.CSS { return template.CSS(css) }, //nolint:gosec // the program's own
			"clock": chart.Clock, "ago": ago, "span": span, "count": job.Count, "pos": pos,
			"wait": func(s float64) string { return span(time.Duration(s * float64(time.Second))) },
			"gpus": func(n float64) string { return strconv.FormatFloat(math.Round(10*n)/10, 'f', -1, 64) }, "percent": percent,
			"some": func(v *float64) bool { return v != nil && *v != 0 },
			"size": func(v *float64) *float64 { size := math.Abs(*v); return &size },
			"less": func(v *float64) string { return map[bool]string{false: "less", true: "longer"}[*v < 0] },
			"part": func(v *float64) string {
				if v == nil {
					return ""
				}
				return percent(*v)
			},
		}).ParseFS(sources, "*.html")),
	}
}

// write answers with the page of a view.
func (p *pages) write(w http.ResponseWriter, name string, view any) {
	var b bytes.Buffer
	if err := p.tmpl.ExecuteTemplate(&b, name, view); err != nil {
		http.Error(w, "the page can't be made", http.StatusInternalServerError)
		return
	}
	for name, value := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": p.policy, "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
	} {
		w.Header().Set(name, value)
	}
	_, _ = w.Write(b.Bytes()) // the reader may be gone
}

func (p *pages) show(w http.ResponseWriter, req *http.Request) {
	o, err := readOptions(req.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.write(w, "page.html", p.view(req.Context(), o, newMask(p.viewer(w, req, p.private(p.Status())))))
}

// past is what was read of the past. Reading it costs more than the rest of the
// page, so reloading it gives the same for a while.
type past struct {
	runs    []history.Run
	trouble string
}

// Bounds of reading the past: how old what was read may be, how long an answer waits for it, and how long it may take.
const (
	readAgain  = 10 * time.Second
	pastWithin = 2 * time.Second
	readWithin = 30 * time.Second
)

// past returns what is shown of the past, which readers share. Without it the page still says what is now.
func (p *pages) past(ctx context.Context, now time.Time, hours int) past {
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	h, err := p.read.get(ctx, strconv.Itoa(hours), func(ctx context.Context) (past, error) {
		return p.load(ctx, now.Add(-time.Duration(hours)*time.Hour))
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		h.trouble = "what ran before is still being read"
	case err != nil:
		h.trouble = err.Error()
	}
	return h
}

// errRuns is an error of load, as the page shows it.
var errRuns = errors.New("what ran before can't be read")

// load reads the past, in the order in which runs ended. With an error it returns what could be read.
func (p *pages) load(ctx context.Context, from time.Time) (h past, err error) {
	if p.Runs == nil {
		return h, nil
	}
	for r, err := range p.Runs(ctx, history.Filter{From: from, Running: true, Latest: mostRuns}) {
		if err != nil {
			return h, errRuns
		}
		h.runs = append(h.runs, r)
	}
	slices.Reverse(h.runs) // the latest came first
	return h, nil
}

// ago says how long before now something was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span(now.Sub(t)) + " ago"
}

// span prints a duration that isn't negative.
func span(d time.Duration) string { return job.Span(max(0, d).Hours()) }
