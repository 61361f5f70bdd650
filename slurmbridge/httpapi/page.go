package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

//go:embed page.html
var pageSource string

//go:embed page.css
var pageCSS string

// Limits of what a page shows, independent of its query.
const (
	mostGPUs    = 100
	mostJobs    = 500
	mostRuns    = 20_000 // that are read of the past
	mostDetails = 4      // combinations considered, and refused, of a job
	hoursMost   = 168
)

type options struct {
	Hours, GPUs, Skip, Jobs int
	Refresh                 int // s; 0 = never
}

func readOptions(q url.Values) (options, error) {
	o := options{Hours: 6, GPUs: 24, Jobs: 40, Refresh: 30}
	for _, x := range []struct {
		name     string
		into     *int
		low, top int
	}{
		{"hours", &o.Hours, 1, hoursMost},
		{"gpus", &o.GPUs, 1, mostGPUs},
		{"skip", &o.Skip, 0, 1_000_000},
		{"jobs", &o.Jobs, 1, mostJobs},
		{"refresh", &o.Refresh, 0, 86_400},
	} {
		v := q.Get(x.name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < x.low || n > x.top {
			return o, fmt.Errorf("%s takes a number from %d to %d", x.name, x.low, x.top)
		}
		*x.into = n
	}
	if o.Refresh > 0 {
		o.Refresh = max(o.Refresh, 5)
	}
	return o, nil
}

// With returns the address of the same page with one option changed.
func (o options) With(name string, value int) string {
	q := url.Values{}
	for k, v := range map[string]int{"hours": o.Hours, "gpus": o.GPUs, "skip": o.Skip, "jobs": o.Jobs, "refresh": o.Refresh} {
		if k == name {
			v = value
		}
		q.Set(k, strconv.Itoa(v))
	}
	return "?" + q.Encode()
}

// pageParameters are those of readOptions.
var pageParameters = parameters{"hours": 1, "gpus": 1, "skip": 1, "jobs": 1, "refresh": 1}

type pages struct {
	*sheet
	server *Server
	began  time.Time
	read   memo[int, past] // by hours, one of spans
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

func newPages(s *Server) *pages {
	return &pages{sheet: newSheet(pageSource), server: s, began: s.Now(), read: memo[int, past]{now: s.Now, fresh: readAgain, within: readWithin, most: len(spans)}}
}

// sheet is a page's template with its style sheet.
type sheet struct {
	tmpl   *template.Template
	css    template.CSS
	policy string // Content-Security-Policy: the style sheet, and nothing else
}

func newSheet(source string) *sheet {
	s := &sheet{css: template.CSS(chart.CSS + pageCSS)} //nolint:gosec // the program's own
	sum := sha256.Sum256([]byte(s.css))
	s.policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	number := func(digits int) func(v float64) string {
		return func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	}
	known := func(v *float64, text func(float64) string) string {
		if v == nil {
			return ""
		}
		return text(*v)
	}
	percent := func(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
	s.tmpl = template.Must(template.New("page").Funcs(template.FuncMap{
		"clock": clock, "ago": ago, "count": job.Count, "pos": number(2), "gpus": number(1), "percent": percent,
		"part": func(v *float64) string { return known(v, percent) },
		"add":  func(a, b int) int { return a + b }, "half": func(a int) int { return a/2 + 4 },
	}).Parse(source))
	return s
}

// write answers with the page of a view.
func (s *sheet) write(w http.ResponseWriter, view any) {
	var b bytes.Buffer
	if err := s.tmpl.Execute(&b, view); err != nil {
		http.Error(w, "the page can't be made", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", s.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes()) // the reader may be gone
}

func (p *pages) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	o, err := readOptions(req.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.write(w, p.view(req.Context(), o, newMask(p.server.viewer(w, req, p.server.Status()))))
}

// spans are the lengths of the past that are read, hours: a page shows the last part of one.
// However many lengths readers ask for, the past is read this often at most.
var spans = []int{1, 6, 24, hoursMost}

// past returns what is shown of the past. Without it the page still says what is now.
func (p *pages) past(ctx context.Context, now time.Time, hours int) past {
	i, _ := slices.BinarySearch(spans, hours)
	span := time.Duration(spans[min(i, len(spans)-1)]) * time.Hour
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	h, err := p.read.get(ctx, int(span/time.Hour), func(ctx context.Context) (past, error) { return p.load(ctx, now.Add(-span)) })
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		h.trouble = "what ran before is still being read"
	case err != nil:
		h.trouble = err.Error()
	}
	from := now.Add(-time.Duration(hours) * time.Hour)
	h.runs = slices.DeleteFunc(slices.Clone(h.runs), func(r history.Run) bool { return !r.End.IsZero() && r.End.Before(from) })
	return h
}

// errRuns is an error of load, as the page shows it.
var errRuns = errors.New("what ran before can't be read")

// load reads the past. With an error it returns what could be read.
func (p *pages) load(ctx context.Context, from time.Time) (h past, err error) {
	if p.server.Runs == nil {
		return h, nil
	}
	for r, err := range p.server.Runs(ctx, history.Filter{From: from, Running: true, Latest: mostRuns}) {
		if err != nil {
			return h, errRuns
		}
		h.runs = append(h.runs, r)
	}
	return h, nil
}

// ago says how long before now something was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span2(now.Sub(t)) + " ago"
}

// span2 prints a duration with two units at most.
func span2(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}
