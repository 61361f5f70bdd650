package httpapi

import (
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
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

//go:embed *.html
var sources embed.FS

//go:embed page.css
var pageCSS string

// parsePages returns the pages' templates, and the Content-Security-Policy that allows their style sheet.
func parsePages() (*template.Template, string) {
	css := chart.CSS + pageCSS
	sum := sha256.Sum256([]byte(css))
	percent := func(part float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*part)+0) }
	pages := template.Must(template.New("").Funcs(template.FuncMap{
		"css":   func() template.CSS { return template.CSS(css) }, //nolint:gosec // our own
		"clock": chart.Clock, "ago": ago, "span": span, "count": job.Count, "percent": percent,
		"pos":  func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) },
		"wait": func(s float64) string { return span(time.Duration(s * float64(time.Second))) },
		"gpus": func(n float64) string { return strconv.FormatFloat(math.Round(10*n)/10, 'f', -1, 64) },
		"some": func(v *float64) bool { return v != nil && *v != 0 },
		"size": func(v *float64) *float64 { size := math.Abs(*v); return &size },
		"less": func(v *float64) string { return map[bool]string{false: "less", true: "longer"}[*v < 0] },
		"part": func(v *float64) string {
			if v == nil {
				return ""
			}
			return percent(*v)
		},
	}).ParseFS(sources, "*.html"))
	return pages, "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span(now.Sub(t)) + " ago"
}

// span prints a duration; a negative one as 0.
func span(d time.Duration) string { return job.Span(max(0, d).Hours()) }

// Limits of a page.
const (
	mostGPUs   = 100
	mostJobs   = 500
	mostRuns   = 20_000 // read from the past
	mostPoints = 400    // in the chart of slowdowns
)

// hourSet are the hours of the past that pages can show: few, so that requests share one reading of the past.
var hourSet = []int{1, 6, 24, 72}

type options struct {
	Hours, GPUs, Skip, Jobs int
	Refresh                 int // s; 0 = never
}

var pageParameters = parameters{"hours": 1, "gpus": 1, "skip": 1, "jobs": 1, "refresh": 1}

func readOptions(q url.Values) (options, error) {
	o := options{Hours: 6, GPUs: 24, Jobs: 40, Refresh: 30}
	err := cmp.Or(readNumber(q, "hours", &o.Hours, 1, slices.Max(hourSet)), readNumber(q, "gpus", &o.GPUs, 1, mostGPUs),
		readNumber(q, "skip", &o.Skip, 0, 1_000_000), readNumber(q, "jobs", &o.Jobs, 1, mostJobs),
		readNumber(q, "refresh", &o.Refresh, 0, 86_400))
	if err == nil && !slices.Contains(hourSet, o.Hours) {
		err = badRequest("hours takes a number of %v", hourSet)
	}
	if o.Refresh > 0 {
		o.Refresh = max(o.Refresh, 5)
	}
	return o, err
}

func readNumber(q url.Values, name string, into *int, low, top int) error {
	v := q.Get(name)
	if v == "" {
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > top {
		return badRequest("%s takes a number from %d to %d", name, low, top)
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

// view is what the status page shows.
type view struct {
	options
	Now     time.Time
	HourSet []int
	Health  job.Health
	Trouble string // the missing part of the page, "" = none
	Begins  bool   // the first poll has not ended
	Private bool   // Slurm hides other users' jobs

	*job.Status      // nil = no poll so far
	Lease            string
	GPUCount         Uses
	JobCount         struct{ Waiting, Released, Running int }
	Time             template.HTML
	Shown, All, Next int // GPUs: in Time, of the cluster, and to skip for the next page, 0 = no more
	Queue            []queued
	Slow             *receipt.Receipt // of the runs that shared a GPU lately
	Predicted        float64          // the mean predicted slowdown of the runs in Picture
	Picture          template.HTML
}

// queued is a waiting job with the reason why it waits.
type queued struct {
	*job.Job
	App, Why string
	Note     *job.Explanation // of the last decision, nil = none
}

// Pending returns the number of jobs in the queue, shown or not.
func (v *view) Pending() int { return v.JobCount.Waiting + v.JobCount.Released }

func (a *api) statusPage(w http.ResponseWriter, req *http.Request) (any, error) {
	o, err := readOptions(req.URL.Query())
	if err != nil {
		return nil, err
	}
	st := a.Status()
	now := a.Now()
	m := newMask(a.viewer(w, req, a.private(st)), st)
	v := &view{options: o, Now: now, HourSet: hourSet, Private: !m.all, Health: a.Health(), Begins: a.begins()}
	if st == nil || st.Snap == nil {
		return page{"page.html", v}, nil
	}
	v.Status = st
	v.Lease = span(st.Lease)
	runs, trouble := a.past(req.Context(), now, o.Hours)
	v.Trouble = trouble
	v.show(gpusOf(st, m), runs, m)
	v.queue(m)
	v.slow(runs, m)
	return page{"page.html", v}, nil
}

// Bounds of reading the past.
const (
	readAgain  = 10 * time.Second // the maximum age of cached runs
	pastWithin = 2 * time.Second  // an answer waits for them
	readWithin = 30 * time.Second // reading may take
)

// errRuns replaces errors of reading runs on the page.
var errRuns = errors.New("past runs can't be read")

// past returns the runs of the last hours, in the order of their ends, or the trouble with reading them. Reading costs
// more than the rest of the page, so requests share the runs for a while.
func (a *api) past(ctx context.Context, now time.Time, hours int) (runs []history.Run, trouble string) {
	if a.Runs == nil {
		return nil, ""
	}
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	runs, err := a.runs.get(ctx, strconv.Itoa(hours), func(ctx context.Context) (runs []history.Run, err error) {
		from := now.Add(-time.Duration(hours) * time.Hour)
		for r, err := range a.Runs(ctx, history.Filter{From: from, Running: true, Latest: mostRuns}) {
			if err != nil {
				return runs, errRuns
			}
			runs = append(runs, r)
		}
		slices.Reverse(runs) // the latest came first
		return runs, nil
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		trouble = "past runs are still being read"
	case err != nil:
		trouble = err.Error()
	}
	return runs, trouble
}

// queue lists the waiting jobs of highest priority that the viewer may see, with reasons.
func (v *view) queue(m *mask) {
	sent := sentTo(v.Status)
	for i := range v.Snap.Jobs {
		j := &v.Snap.Jobs[i]
		switch {
		case j.State != job.Pending:
			v.JobCount.Running++
			continue
		case sent[j.Ref] != nil:
			v.JobCount.Released++
		default:
			v.JobCount.Waiting++
		}
		if len(v.Queue) < v.Jobs && m.owns(j.User) {
			q := queued{Job: j, App: v.Apps[j.Ref].Key, Note: m.explanation(v.Explanations[j.Ref])}
			if q.Note != nil {
				q.App = q.Note.App
			}
			q.Why = whyWaits(v.Status, j, sent[j.Ref], q.Note)
			v.Queue = append(v.Queue, q)
		}
	}
}

// whyWaits says why a job waits. g is the group in which it was sent to a GPU, nil = none.
func whyWaits(st *job.Status, j *job.Job, g *job.Group, note *job.Explanation) string {
	reason := "" // Slurm's, unless it is the gate
	if !slices.Contains([]string{"", "None", "Dependency"}, j.Reason) {
		reason = " (" + j.Reason + ")"
	}
	switch {
	case g != nil && g.Node == "":
		return "waits for its turn among jobs that don't share"
	case g != nil:
		return "starts now " + g.Where()
	case st.Unmanaged[j.Ref] != "":
		return "left to Slurm: " + st.Unmanaged[j.Ref]
	case note != nil && note.Status != "":
		return note.Status
	case j.Request.Kind == job.WholeGPU:
		return "requests whole GPUs: Slurm decides" + reason
	case j.Priority == 0:
		return "is held"
	case j.Reason == "BeginTime":
		return "waits for its begin time"
	case j.Dependency.Raw != "" && !(st.Gate != "" && j.Dependency.Only("after", st.Gate)):
		return "waits for " + j.Dependency.Raw
	}
	return "others come first" + reason
}

// slow sums up the runs that shared a GPU, and draws predicted and measured slowdowns of the latest.
func (v *view) slow(runs []history.Run, m *mask) {
	v.Slow = receipt.Sharing(runs)
	v.Slow.Turn.Of = m.ref(v.Slow.Turn.Of)
	var dots []chart.Point
	for _, r := range v.Slow.Points {
		v.Predicted += r.Predicted() / float64(len(v.Slow.Points))
	}
	for _, r := range v.Slow.Points[max(0, len(v.Slow.Points)-mostPoints):] {
		x := r.Predicted()
		y := r.Outcome.Slowdown
		dots = append(dots, chart.Point{
			X: x, Y: y, Bad: r.Outcome.Broken,
			Label: fmt.Sprintf("%s: predicted %.2f, measured %.2f", m.describe(r.Ref, r.User, r.App), x, y),
		})
	}
	v.Picture = chart.Slowdowns(dots)
}
